// SPDX-License-Identifier: Apache-2.0
// Makes one batch: reads its samples into a slot, copies it to the device, transforms it, and counts what that took.
#pragma once

#include "device_transfer.hpp"
#include "saturate/data/detail/loader_engine.hpp"
#include "slot_pool.hpp"

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace saturate::data::detail {

/// One batch, or what went wrong.
struct MadeBatch {
  bool ready = false;
  std::vector<at::Tensor> tensors;
  std::optional<DeviceTransfer::Copied> copied;
  std::exception_ptr error;
};

class BatchMaker {
 public:
  /// @param slot_samples samples that a slot holds  @param slots that a loop needs which keeps no batches
  BatchMaker(std::unique_ptr<const BatchReader> reader, std::vector<FieldLayout> layout, const LoaderOptions& options,
             int64_t slot_samples, int64_t slots);

  /// On several threads at once. @param pulled for streams
  MadeBatch make(const Places& places, const Pulled* pulled, const Wanted& wanted) noexcept;
  /// On the loop's thread: the tensors, ready for its current stream.
  std::vector<at::Tensor> hand_over(MadeBatch made) const;

  const BatchReader& reader() const { return *reader_; }
  void add_to(LoaderStats& stats) const;

 private:
  void read(const Places& places, const Pulled* pulled, std::byte* const* out, const Wanted& wanted, WrittenRows& rows);
  void into_slot(const Places& places, const Pulled* pulled, const Wanted& wanted, WrittenRows& rows,
                 MadeBatch& result);
  void into_pinned(const Places& places, const Pulled* pulled, const Wanted& wanted, WrittenRows& rows,
                   MadeBatch& result);
  void count(const WrittenRows& rows);

  const std::unique_ptr<const BatchReader> reader_;
  const std::vector<FieldLayout> layout_;
  const OnBadSample on_bad_sample_;
  const BatchTransform transform_;
  const bool pinned_;
  std::optional<DeviceTransfer> transfer_;
  std::shared_ptr<SlotPool> slots_;

  std::atomic<int64_t> worker_ns_{0}, read_ns_{0}, decode_ns_{0}, bytes_{0}, skipped_{0};
  mutable std::mutex mutex_;
  std::string last_skipped_;  // guarded by it
};

}  // namespace saturate::data::detail
