// SPDX-License-Identifier: Apache-2.0
// How much tensor memory a piece of a program needs:
//
//   MemoryMeter meter;
//   loss = step(batch);
//   meter.counts().peak_bytes           // CPU tensors
//   meter.counts({c10::kCUDA, 0}).peak_bytes
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>

namespace saturate {

/// Tensor memory of one device while a MemoryMeter lived. Bytes are what the allocator was asked for (CPU) or what it
/// gave (CUDA rounds up to its block size).
struct MemoryCounts {
  int64_t allocations = 0;    ///< blocks allocated
  int64_t frees = 0;          ///< of those blocks, how many were freed
  int64_t bytes = 0;          ///< of those blocks, still alive
  int64_t peak_bytes = 0;     ///< highest value of `bytes`
  int64_t largest_block = 0;  ///< bytes
  /// The largest freed block that glibc's dynamic threshold would have followed (at most 32 MiB): what
  /// host_memory::restore_default wants.
  int64_t largest_freed_small_block = 0;
};

/// A block that a MemoryMeter has counted.
struct MemoryEvent {
  const void* block;
  int64_t bytes;  ///< above 0: it was allocated; below 0: freed
  c10::Device device;
};

/// Counts the tensor memory that is allocated on this thread, on threads that run its backward pass, and on threads
/// that it gives work to through at::launch, while the object lives. Works through the hook of LibTorch's memory
/// profiler, so it sees every device whose allocator reports to that hook (CPU, CUDA).
///
/// Blocks that are older than the meter are not counted, nor is their end. Other threads of the program (the workers of
/// a loader) are not seen; a block allocated here and freed there stays counted as alive. Blocks are kept by address in
/// a table under a lock: about 0.4 µs an allocation and free, no effect on the sizes.
///
/// Meters nest; they end in reverse order, on the thread that made them. LibTorch's profiler cannot start while one
/// lives.
class MemoryMeter {
 public:
  /// @throws StateError when LibTorch's profiler is running on this thread: both need the same hook.
  MemoryMeter();
  /// Besides, tells `listener` of every block that it counts, in order and one at a time, on the thread that allocates
  /// or frees it. The listener must not throw, allocate tensors or ask this meter.
  explicit MemoryMeter(std::function<void(const MemoryEvent&)> listener);
  ~MemoryMeter();
  MemoryMeter(const MemoryMeter&) = delete;
  MemoryMeter& operator=(const MemoryMeter&) = delete;

  /// Zeros for a device that allocated nothing. A device other than the CPU without an index is its number 0.
  MemoryCounts counts(c10::Device device = c10::kCPU) const;

  /// Counts a block that is older than the meter as if it were allocated now, without telling the listener: so that
  /// its end counts, and is told. Nothing happens when the meter knows the block.
  void adopt(const void* block, int64_t bytes, c10::Device device);

  /// Lowers every `peak_bytes` to the `bytes` of now.
  void reset_peak();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Highest resident memory of this process so far in bytes (VmHWM of /proc/self/status); 0 where there is none.
int64_t resident_peak_bytes();

/// Resident memory of this process now, in bytes (VmRSS); 0 where there is none.
int64_t resident_bytes();

/// Lowers resident_peak_bytes() to the value of now (writes 5 to /proc/self/clear_refs). @return whether it worked.
bool reset_resident_peak();

/// Highest number of bytes that tensors of a device other than the CPU held at once, in the whole process, since its
/// start or the last reset: read from the device's caching allocator, whoever allocated; 0 before the first use.
/// @throws ConfigError for the CPU (use MemoryMeter) or a device whose allocator keeps no statistics.
int64_t device_peak_bytes(c10::Device device);

/// Starts device_peak_bytes() anew. @throws ConfigError as above.
void reset_device_peak(c10::Device device);

}  // namespace saturate
