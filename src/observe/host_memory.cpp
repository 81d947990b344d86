// SPDX-License-Identifier: Apache-2.0
#include "saturate/host_memory.hpp"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "saturate/error.hpp"
#include "saturate/log.hpp"

#if defined(__GLIBC__) && __has_include(<malloc.h>)
#include <malloc.h>
#define SATURATE_GLIBC_MALLOC 1
#endif

namespace saturate::host_memory {
namespace {

constexpr int64_t smallest_threshold = 128 << 10;  // glibc's first value
constexpr int64_t late_bytes = 4 << 20;            // a program's own tables are not tensors

struct State {
  std::mutex mutex;
  bool kept = false;
  std::vector<void*> plugs;
};

State& state() {
  static State instance;
  return instance;
}

#ifdef SATURATE_GLIBC_MALLOC

int64_t mapped_bytes() { return static_cast<int64_t>(mallinfo2().hblkhd); }

// Before main: what LibTorch's own static tables have mapped (2 MB with 2.11).
const int64_t mapped_at_start = mapped_bytes();

// With another malloc in front (jemalloc, a sanitizer) glibc's mallopt may well accept what then has no effect.
bool malloc_is_glibc() {
  const auto in_use = [] { return mallinfo2().uordblks + mallinfo2().hblkhd; };
  const auto before = in_use();
  void* volatile probe = ::malloc(1 << 20);
  const auto with_probe = in_use();
  ::free(probe);
  return with_probe >= before + (1 << 20);
}

bool apply_keep() { return malloc_is_glibc() && mallopt(M_MMAP_MAX, 0) == 1 && mallopt(M_TRIM_THRESHOLD, -1) == 1; }

bool apply_default(int64_t mmap_threshold, int64_t trim_threshold) {
  if (!malloc_is_glibc()) return false;
  const bool set = mallopt(M_MMAP_MAX, 65536) == 1 &&
                   mallopt(M_MMAP_THRESHOLD, static_cast<int>(mmap_threshold)) == 1 &&
                   mallopt(M_TRIM_THRESHOLD, static_cast<int>(trim_threshold)) == 1;
  malloc_trim(0);
  return set;
}

// Takes blocks of the heap that are as large as those which are mapped by default, until there are none: glibc maps a
// block only when the heap has no hole for it. Nothing is written to them, so after a trim they are addresses only.
// Never asks for more than the holes' sum: a malloc that fails moves the thread to another heap for good.
std::vector<void*> plug_holes(int64_t mmap_threshold) {
  std::vector<void*> plugs;
  const auto holes = static_cast<int64_t>(mallinfo2().fordblks);
  for (int64_t size = holes; size >= mmap_threshold / 2; size /= 2) {
    const auto request = static_cast<size_t>(std::max(size, mmap_threshold));
    for (;;) {
      const auto mapped = mapped_bytes();
      void* block = ::malloc(request);
      if (block == nullptr || mapped_bytes() > mapped) {
        ::free(block);
        break;
      }
      plugs.push_back(block);
    }
  }
  return plugs;
}

#else

std::vector<void*> plug_holes(int64_t) { return {}; }
int64_t mapped_bytes() { return 0; }
const int64_t mapped_at_start = 0;
bool apply_keep() { return false; }
bool apply_default(int64_t, int64_t) { return false; }

#endif

std::string megabytes(int64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

// A mapped block's size is what glibc's threshold becomes when it is freed: the request, the room for an alignment of
// 64 and two headers, rounded up to pages.
int64_t chunk_bytes(int64_t block) { return (block + 128 + 4095) / 4096 * 4096; }

KeptPages describe(bool already) {
  KeptPages result;
  result.kept = state().kept;
  result.mapped_bytes = mapped_bytes();
  result.late = !already && result.kept && result.mapped_bytes > mapped_at_start + late_bytes;
  if (!result.kept) {
    result.message =
        "host_memory::keep_pages has no effect: malloc is not glibc's here (musl, jemalloc or a sanitizer); leave it "
        "out.";
  } else if (result.late) {
    result.message =
        "host_memory::keep_pages came late: " + megabytes(result.mapped_bytes - mapped_at_start) +
        " are already mapped block by block and will go back to the kernel when freed; call it first in main.";
  } else {
    result.message = "host memory: freed pages are kept (no mapped blocks, no trimming).";
  }
  return result;
}

}  // namespace

KeptPages keep_pages() {
  const std::lock_guard lock(state().mutex);
  const bool already = state().kept;
  if (!already) {
    state().kept = apply_keep();
    for (void* plug : state().plugs) ::free(plug);
    state().plugs.clear();
  }
  const KeptPages result = describe(already);
  if (!result.kept || result.late) {
    log::warn_once("host_memory::" + std::string(result.late ? "late" : "unsupported"), result.message);
  }
  return result;
}

bool pages_kept() {
  const std::lock_guard lock(state().mutex);
  return state().kept;
}

DefaultEmulation restore_default(int64_t largest_freed_block) {
  if (largest_freed_block < 0) {
    throw ConfigError("host_memory::restore_default: a block of " + std::to_string(largest_freed_block) +
                      " bytes cannot be; give MemoryCounts::largest_freed_small_block.");
  }
  DefaultEmulation result;
  result.mmap_threshold = std::clamp(chunk_bytes(largest_freed_block), smallest_threshold, max_dynamic_threshold);
  result.trim_threshold = result.mmap_threshold == smallest_threshold ? smallest_threshold : 2 * result.mmap_threshold;
  const std::lock_guard lock(state().mutex);
  for (void* plug : state().plugs) ::free(plug);
  state().plugs.clear();
  result.restored = apply_default(result.mmap_threshold, result.trim_threshold);
  if (!result.restored) return result;
  state().kept = false;
  state().plugs = plug_holes(result.mmap_threshold);
  return result;
}

}  // namespace saturate::host_memory
