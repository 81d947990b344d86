// SPDX-License-Identifier: Apache-2.0
#include "memory_gauge.hpp"

#include <c10/core/CachingDeviceAllocator.h>

namespace saturate::detail {
namespace {

c10::CachingAllocator::Stat allocated(c10::Device device) {
  auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (allocator == nullptr || !allocator->initialized()) return {};
  const auto stats = allocator->getDeviceStats(device.has_index() ? device.index() : c10::DeviceIndex{0});
  return stats.allocated_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
}

}  // namespace

MemoryGauge::MemoryGauge(c10::Device device) : device_(device) {
  if (device_.is_cpu()) {
    meter_.emplace();
  } else {
    reset_peak();
  }
}

int64_t MemoryGauge::level() const { return meter_ ? meter_->counts().bytes : allocated(device_).current; }
int64_t MemoryGauge::peak() const { return meter_ ? meter_->counts().peak_bytes : allocated(device_).peak; }

void MemoryGauge::reset_peak() {
  if (meter_) {
    meter_->reset_peak();
  } else {
    reset_device_peak(device_);
  }
}

}  // namespace saturate::detail
