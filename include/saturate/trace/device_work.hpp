// SPDX-License-Identifier: Apache-2.0
// What a device did: kernels, how small they are and whether it waited for them, and copies by direction and memory.
#pragma once

#include "saturate/trace/timeline.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace saturate {

enum class CopyMemory { unknown, pageable, pinned };

/// Copies of one direction, between one kind of host memory and the device.
struct CopyWork {
  std::string direction;  ///< "HtoD", "DtoH", "DtoD", "PtoP"; empty: not told
  CopyMemory host = CopyMemory::unknown;
  int64_t count = 0;
  int64_t bytes = 0;  ///< of those that tell
  int64_t ns = 0;
  double bytes_per_second() const;  ///< 0: no time or no bytes
};

/// Allocations and releases in one kind of memory, where the profile has them (profile_memory).
struct MemoryWork {
  int64_t allocations = 0, allocated_bytes = 0;
  int64_t releases = 0, released_bytes = 0;
  int64_t peak_allocated = -1, peak_reserved = -1;  ///< bytes, the most that any of the events saw; -1: not told
};

struct DeviceWork {
  int64_t kernels = 0;
  int64_t kernel_ns = 0;      ///< sum over kernels, which may run at once
  int64_t small_kernels = 0;  ///< shorter than DeviceWorkOptions::small_ns
  int64_t small_kernel_ns = 0;
  int64_t launched = 0;  ///< kernels whose launch the trace has
  /// Of those, kernels that were launched when their stream had nothing more to do: it waited for the host. A device
  /// that is kept fed has few, one that is launch-bound has little else.
  int64_t launched_late = 0;
  int64_t launch_delay_ns = 0;   ///< from the launch's begin to the kernel's, on average over `launched`
  std::vector<CopyWork> copies;  ///< the longest first
  int64_t memsets = 0, memset_ns = 0;
  /// Memory fetched from and given back to the driver, which waits for the device: cudaMalloc, cudaFree. A caching
  /// allocator that works has none after the first steps.
  int64_t driver_allocations = 0, driver_allocation_ns = 0;
  /// cudaFree among them: in the middle of training, the caching allocator gives memory back only when it found none
  /// and tries again.
  int64_t driver_releases = 0;
  MemoryWork device_memory, host_memory;
};

struct DeviceWorkOptions {
  int64_t small_ns = 10'000;
};

/// Of the whole trace, all devices together.
DeviceWork device_work(const Timeline& timeline, const DeviceWorkOptions& options = {});

}  // namespace saturate
