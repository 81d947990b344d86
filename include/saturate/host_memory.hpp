// SPDX-License-Identifier: Apache-2.0
// Keeps the memory of large CPU tensors in the process instead of returning it to the kernel after every use. The first
// lines of main:
//
//   int main() {
//     saturate::host_memory::keep_pages();
//     ...
//
// Why: glibc maps a block that is larger than its threshold straight from the kernel, and unmaps it when it is freed.
// A training step frees and allocates the same large activations again and again, so each step pays page faults and
// zeroing for all of them. With pages kept, the blocks come from a heap that never shrinks.
//
// Cost: the process stays as large as it ever was. So it is opt-in. Blocks over 64 MiB that are allocated on other
// threads than the first come from the kernel all the same (glibc's per-thread heaps end there).
#pragma once

#include <cstdint>
#include <string>

namespace saturate::host_memory {

/// glibc's threshold follows freed blocks up to this size; larger ones are always mapped (32 MiB).
inline constexpr int64_t max_dynamic_threshold = int64_t{32} << 20;

/// What keep_pages did.
struct KeptPages {
  bool kept = false;         ///< pages are kept from now on
  bool late = false;         ///< large blocks were already mapped: these still go back to the kernel, once
  int64_t mapped_bytes = 0;  ///< bytes of blocks mapped straight from the kernel at the call (mallinfo2's hblkhd)
  std::string message;       ///< one sentence on all that, for a report
};

/// Keeps pages from here on: mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, -1, which is "never"). Before the
/// first large tensor it has its full effect; later it warns. Where malloc is not glibc's (musl, jemalloc, a sanitizer)
/// it changes nothing and warns. Idempotent: a second call reports the state and does nothing. Thread-safe.
KeptPages keep_pages();

/// Whether keep_pages is in effect.
bool pages_kept();

/// The settings that restore_default made.
struct DefaultEmulation {
  bool restored = false;
  int64_t mmap_threshold = 0;  ///< bytes
  int64_t trim_threshold = 0;  ///< bytes
};

/// Switches back to what glibc would do by default *in its steady state*, so that a process can measure both sides.
///
/// It is an emulation, because the default cannot be had back: it is dynamic (each freed mapped block of at most 32 MiB
/// raises the mmap threshold to its size and the trim threshold to twice that), and the first mallopt of these
/// parameters switches that off for good. After a few training steps the dynamic values have settled on the largest
/// such block, so this sets them there: M_MMAP_MAX = 65536, M_MMAP_THRESHOLD = that size (rounded up to pages, with
/// room for the block's header and alignment, so that a block of exactly that size comes from the heap, as by default)
/// and M_TRIM_THRESHOLD = twice that.
///
/// The heap that was kept would still serve large blocks from its holes, without a fault, which a process by default
/// has not: malloc_trim(0) gives the pages back, and the holes that are as large as the threshold are occupied
/// (addresses only, no memory) until the next keep_pages. Holes of the calling thread's heap, that is: call both
/// functions on the thread that trains, at a point where little is allocated, and warm up for a few steps after each.
///
/// @param largest_freed_block bytes of the largest block of at most 32 MiB that the workload frees
///   (MemoryCounts::largest_freed_small_block); clamped to [128 KiB, 32 MiB]. With 0: the threshold of a fresh process.
/// @throws ConfigError when negative.
DefaultEmulation restore_default(int64_t largest_freed_block);

}  // namespace saturate::host_memory
