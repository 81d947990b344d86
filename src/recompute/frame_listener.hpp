// SPDX-License-Identifier: Apache-2.0
// Who wants to know what a recomputed block keeps, and when backward runs it again.
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace saturate::detail {

/// The memory of one tensor that a block has not kept.
struct DroppedStorage {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // weak: its address is no other's while this lives
  int64_t bytes;
};

/// Called on the thread that runs the block: in backward on a GPU, that is not the one that made it.
class FrameListener {
 public:
  virtual ~FrameListener() = default;
  /// The first forward has saved a tensor that is dropped.
  virtual void saved() = 0;
  /// The first forward is over.
  /// @param dropped what a plain run would have kept; several tensors may share a storage.
  /// @param input_bytes of the inputs, kept for the second forward.
  /// @param unsaved_input_bytes of those that a plain run would not have kept.
  virtual void forward_done(std::vector<DroppedStorage> dropped, int64_t input_bytes, int64_t unsaved_input_bytes) = 0;
  virtual void replay_begins() = 0;
  /// The second forward has saved all that is needed, and ends here.
  virtual void replay_saved() = 0;
  virtual void replay_done() = 0;
};

/// The next block that this thread begins is told about to `listener` (nullptr: to nobody).
void listen_to_next_frame(std::shared_ptr<FrameListener> listener);
/// That listener, for once.
std::shared_ptr<FrameListener> take_next_listener();

}  // namespace saturate::detail
