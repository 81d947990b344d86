// SPDX-License-Identifier: Apache-2.0
// Tensor memory of one device, now and at its highest.
#pragma once

#include "saturate/observe/memory_meter.hpp"

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace saturate::detail {

/// On the CPU what this thread and its backward pass allocate; elsewhere everything that the device's allocator has
/// given out, by its own statistics, of which the peak is reset. Costs nothing but a meter on the CPU.
class MemoryGauge {
 public:
  /// @throws StateError the CPU's memory cannot be seen: LibTorch's profiler holds the hook.
  explicit MemoryGauge(c10::Device device);

  /// Bytes; on the CPU since the gauge was made, and perhaps negative.
  int64_t level() const;
  /// Highest level since the gauge was made or the last reset.
  int64_t peak() const;
  void reset_peak();

 private:
  c10::Device device_;
  std::optional<MemoryMeter> meter_;
};

}  // namespace saturate::detail
