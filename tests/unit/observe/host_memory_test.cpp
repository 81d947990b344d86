// SPDX-License-Identifier: Apache-2.0
#include "saturate/host_memory.hpp"

#include <malloc.h>
#include <torch/torch.h>

#include <catch2/catch_test_macros.hpp>

#include "saturate/error.hpp"
#include "saturate/log.hpp"
#include "saturate/observe/memory_meter.hpp"

namespace host_memory = saturate::host_memory;

namespace {

// Whether a tensor of `bytes` comes straight from the kernel.
bool is_mapped(int64_t bytes) {
  const auto before = mallinfo2().hblkhd;
  const auto block = torch::empty({bytes}, torch::kUInt8);
  return mallinfo2().hblkhd >= before + static_cast<size_t>(bytes);
}

// Leaves the process as glibc would have it, whatever a check does.
struct Restore {
  ~Restore() { host_memory::restore_default(0); }
};

struct Warnings {
  int seen = 0;
  Warnings() {
    saturate::log::set_sink(
        [](saturate::log::Level level, std::string_view, void* self) {
          if (level == saturate::log::Level::warn) ++static_cast<Warnings*>(self)->seen;
        },
        this);
  }
  ~Warnings() { saturate::log::set_sink(nullptr, nullptr); }
};

}  // namespace

TEST_CASE("host_memory: pages are kept from the call on, and given back when restored") {
  const Restore restore;
  const bool mapped_before = is_mapped(64 << 20);
  const auto result = host_memory::keep_pages();
  if (!result.kept) SKIP(result.message);  // a sanitizer's malloc
  REQUIRE(mapped_before);
  CHECK_FALSE(result.late);
  CHECK(host_memory::pages_kept());
  CHECK_FALSE(is_mapped(64 << 20));

  const int64_t before = saturate::resident_bytes();
  { auto block = torch::ones({256 << 20}, torch::kUInt8); }
  const int64_t after = saturate::resident_bytes();
  CHECK(after >= before + (200 << 20));  // freed, and still the process's

  const auto second = host_memory::keep_pages();
  CHECK(second.kept);
  CHECK_FALSE(second.late);

  const auto emulation = host_memory::restore_default(1 << 20);
  CHECK(emulation.restored);
  CHECK_FALSE(host_memory::pages_kept());
  CHECK(saturate::resident_bytes() <= after - (200 << 20));  // given back
}

TEST_CASE("host_memory: the emulated default maps what glibc in its steady state maps, and no more") {
  const Restore restore;
  if (!host_memory::keep_pages().kept) SKIP("malloc is not glibc's");
  const auto emulation = host_memory::restore_default(1 << 20);
  CHECK(emulation.mmap_threshold == (1 << 20) + 4096);
  CHECK(emulation.trim_threshold == 2 * emulation.mmap_threshold);
  CHECK_FALSE(is_mapped(1 << 20));  // the block that set the threshold comes from the heap, as by default
  CHECK(is_mapped(2 << 20));
  CHECK(host_memory::restore_default(int64_t{1} << 40).mmap_threshold == 32 << 20);
  CHECK(is_mapped(40 << 20));
  CHECK_FALSE(is_mapped(16 << 20));
  CHECK(host_memory::restore_default(0).mmap_threshold == 128 << 10);
  CHECK(is_mapped(256 << 10));
  CHECK_THROWS_AS(host_memory::restore_default(-1), saturate::ConfigError);
}

TEST_CASE("host_memory: called with large blocks already mapped, it says so") {
  const Restore restore;
  const auto block = torch::empty({64 << 20}, torch::kUInt8);
  Warnings warnings;
  const auto result = host_memory::keep_pages();
  if (!result.kept) SKIP(result.message);
  CHECK(result.late);
  CHECK(result.mapped_bytes >= 64 << 20);
  CHECK(result.message.find("late") != std::string::npos);
  CHECK(warnings.seen == 1);
}

TEST_CASE("host_memory: the two settings can be changed in turns, as interleaved rounds do") {
  const Restore restore;
  if (!host_memory::keep_pages().kept) SKIP("malloc is not glibc's");
  for (int round = 0; round < 3; ++round) {
    CAPTURE(round);
    REQUIRE(host_memory::keep_pages().kept);
    // Leaves a hole of kept pages in the middle of the heap, as a training step's activations do.
    auto hole = torch::ones({96 << 20}, torch::kUInt8);
    const auto above = torch::ones({1 << 20}, torch::kUInt8);
    hole = at::Tensor();
    CHECK_FALSE(is_mapped(64 << 20));
    host_memory::restore_default(4 << 20);
    CHECK(is_mapped(64 << 20));  // and not from the hole, which a process by default would not have
    CHECK(is_mapped(8 << 20));
    CHECK_FALSE(is_mapped(2 << 20));
  }
}
