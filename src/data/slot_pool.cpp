// SPDX-License-Identifier: Apache-2.0
#include "slot_pool.hpp"

#include "saturate/log.hpp"

#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/MemoryFormat.h>

#include <new>
#include <optional>
#include <string>
#include <utility>

namespace saturate::data::detail {
namespace {
constexpr std::size_t alignment = 64;

/// None for the usual ones.
std::optional<std::vector<int64_t>> strides_of(const std::vector<int64_t>& sizes, at::MemoryFormat format) {
  if (format != at::MemoryFormat::ChannelsLast) return std::nullopt;
  return c10::get_channels_last_strides_2d(sizes);
}

}  // namespace

SlotPool::SlotPool(const std::vector<FieldLayout>& layout, int64_t batch_size, int64_t expected) : expected_(expected) {
  for (const FieldLayout& field : layout) {
    offsets_.push_back(bytes_);
    const auto field_bytes = static_cast<std::size_t>(field.bytes() * batch_size);
    bytes_ += (field_bytes + alignment - 1) / alignment * alignment;
  }
}

// Nothing is out by now: a slot that is out holds a reference to its pool.
SlotPool::~SlotPool() {
  for (Slot* slot : free_) {
    ::operator delete (slot->memory, std::align_val_t{alignment});
    delete slot;
  }
}

SlotPool::Handle SlotPool::acquire() {
  Slot* slot = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      slot = free_.back();
      free_.pop_back();
    }
  }
  if (slot == nullptr) slot = allocate();
  slot->home = shared_from_this();
  return Handle(slot);
}

SlotPool::Slot* SlotPool::allocate() {
  auto slot = std::make_unique<Slot>();
  const int64_t count = allocations_.fetch_add(1, std::memory_order_relaxed) + 1;
  {
    // Room for every slot there is: giving one back must not fail.
    const std::lock_guard lock(mutex_);
    free_.reserve(static_cast<std::size_t>(count));
  }
  slot->memory = static_cast<std::byte*>(::operator new (bytes_, std::align_val_t{alignment}));
  if (count == expected_ + 1) {
    log::warn_once("data.slots", "PrefetchLoader: more batches are kept than it reads ahead, so it allocates another " +
                                     std::to_string(bytes_) + " bytes for each; stats().slot_allocations counts them");
  }
  return slot.release();
}

void SlotPool::give_back(Slot* slot) noexcept {
  const auto home = std::move(slot->home);  // may be the last owner: it goes after the lock
  const std::lock_guard lock(mutex_);
  free_.push_back(slot);
}

void SlotPool::drop_tensor(void* slot) noexcept {
  auto* self = static_cast<Slot*>(slot);
  if (self->tensors.fetch_sub(1, std::memory_order_acq_rel) == 1) Return{}(self);
}

std::vector<at::Tensor> SlotPool::as_tensors(Handle slot, const std::vector<FieldLayout>& layout,
                                             int64_t samples) const {
  // Without workers this runs on the caller's thread, maybe in inference mode; batches can be saved for backward all
  // the same.
  const c10::InferenceMode normal(false);
  std::vector<at::Tensor> tensors;
  tensors.reserve(layout.size());
  slot->tensors.store(static_cast<int>(layout.size()), std::memory_order_relaxed);
  Slot* shared = slot.release();
  for (std::size_t f = 0; f < layout.size(); ++f) {
    std::vector<int64_t> sizes{samples};
    sizes.insert(sizes.end(), layout[f].shape.begin(), layout[f].shape.end());
    const auto strides = strides_of(sizes, layout[f].memory_format);
    tensors.push_back(at::for_blob(field(*shared, f), sizes)
                          .strides(strides ? at::OptionalIntArrayRef(*strides) : at::OptionalIntArrayRef())
                          .context(shared, &SlotPool::drop_tensor)
                          .options(at::TensorOptions(layout[f].dtype))
                          .target_device(c10::Device(c10::kCPU))
                          .make_tensor());
  }
  return tensors;
}

}  // namespace saturate::data::detail
