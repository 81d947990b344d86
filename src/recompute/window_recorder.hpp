// SPDX-License-Identifier: Apache-2.0
// Records the memory of one window, at every moment at which a part begins or ends.
#pragma once

#include "frame_listener.hpp"
#include "memory_gauge.hpp"
#include "window_record.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace saturate::detail {

/// Held by the listeners of the window's blocks, which may outlive it: they are not heard then.
class WindowRecorder : public std::enable_shared_from_this<WindowRecorder> {
 public:
  /// @param gauge must live until finish() or close().
  /// @param clock seconds; empty: parts are not timed.
  WindowRecorder(MemoryGauge& gauge, std::function<double()> clock);

  /// A part's forward begins. @return the number of the visit.
  std::size_t enter(std::size_t part);
  /// For the block that the visit is recomputed in.
  std::shared_ptr<FrameListener> listener(std::size_t visit);
  void leave(std::size_t visit);
  /// A forward pass is over: what its blocks have dropped and is still there is held by something else.
  void forward_over();
  WindowRecord finish();
  void close();

 private:
  class Listener;
  struct Dropped {
    std::size_t visit;
    std::vector<DroppedStorage> storages;
    int64_t unsaved_input_bytes;
  };

  void note(MemoryEvent::Kind kind, std::size_t visit);
  void forward_done(std::size_t visit, Dropped dropped, int64_t input_bytes);

  std::mutex mutex_;  // backward runs on several threads where there are several devices
  MemoryGauge* gauge_;
  std::function<double()> clock_;
  int64_t base_;
  double entered_at_ = 0;
  std::vector<Dropped> dropped_;  // of the running forward pass
  WindowRecord record_;
};

}  // namespace saturate::detail
