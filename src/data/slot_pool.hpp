// SPDX-License-Identifier: Apache-2.0
// Blocks of memory that batches are read into, used again when the last tensor over them is gone.
#pragma once

#include "saturate/data/source.hpp"

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace saturate::data::detail {

/// Owned by a shared_ptr: slots that are out keep their pool alive, so tensors may outlive the loader.
class SlotPool : public std::enable_shared_from_this<SlotPool> {
 public:
  struct Slot {
    std::byte* memory = nullptr;  // 64-byte aligned, as is every field in it
    std::atomic<int> tensors{0};
    std::shared_ptr<SlotPool> home;  // while it is out
  };
  struct Return {
    void operator()(Slot* slot) const noexcept { slot->home->give_back(slot); }
  };
  using Handle = std::unique_ptr<Slot, Return>;

  /// @param expected slots that a loop needs that keeps no batches; the first one more is worth a warning.
  SlotPool(const std::vector<FieldLayout>& layout, int64_t batch_size, int64_t expected);
  ~SlotPool();

  /// A free slot, else a new one; never waits for one.
  Handle acquire();
  /// Where field f of the slot begins.
  std::byte* field(const Slot& slot, std::size_t f) const { return slot.memory + offsets_[f]; }
  /// Tensors over the slot's fields. The slot comes back when the last of them, and of all views of them, is gone.
  std::vector<at::Tensor> as_tensors(Handle slot, const std::vector<FieldLayout>& layout, int64_t samples) const;
  int64_t allocations() const { return allocations_.load(std::memory_order_relaxed); }

 private:
  Slot* allocate();
  void give_back(Slot* slot) noexcept;
  static void drop_tensor(void* slot) noexcept;

  std::vector<std::size_t> offsets_;
  std::size_t bytes_ = 0;
  int64_t expected_;
  std::atomic<int64_t> allocations_{0};
  std::mutex mutex_;
  std::vector<Slot*> free_;  // the last one back goes out first: it is still in the cache
};

}  // namespace saturate::data::detail
