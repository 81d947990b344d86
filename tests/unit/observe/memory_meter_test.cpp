// SPDX-License-Identifier: Apache-2.0
#include "saturate/observe/memory_meter.hpp"

#include <sys/mman.h>
#include <torch/csrc/autograd/profiler_legacy.h>
#include <torch/torch.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstring>
#include <optional>
#include <thread>

#include "saturate/error.hpp"

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;
using saturate::MemoryMeter;

namespace {

at::Tensor floats(int64_t count) { return torch::empty({count}); }

}  // namespace

TEST_CASE("MemoryMeter: known sizes give known counts") {
  MemoryMeter meter;
  auto first = floats(1000);
  CHECK(meter.counts().bytes == 4000);
  {
    auto second = floats(5000);
    CHECK(meter.counts().bytes == 24000);
  }
  auto third = floats(250);
  const auto counts = meter.counts();
  CHECK(counts.allocations == 3);
  CHECK(counts.frees == 1);
  CHECK(counts.bytes == 5000);
  CHECK(counts.peak_bytes == 24000);
  CHECK(counts.largest_block == 20000);
  CHECK(counts.largest_freed_small_block == 20000);

  meter.reset_peak();
  CHECK(meter.counts().peak_bytes == 5000);
  auto fourth = floats(250);
  CHECK(meter.counts().peak_bytes == 6000);
}

TEST_CASE("MemoryMeter: a listener hears of every counted block, in order") {
  std::optional<at::Tensor> before = floats(10);
  std::vector<int64_t> heard;
  const MemoryMeter meter([&](const saturate::MemoryEvent& event) {
    CHECK(event.device == c10::Device(c10::kCPU));
    heard.push_back(event.bytes);
  });
  auto first = floats(1000);
  before.reset();  // not counted, not told
  { auto second = floats(5000); }
  CHECK(heard == std::vector<int64_t>{4000, 20000, -20000});
}

TEST_CASE("MemoryMeter: a block over 32 MiB does not move glibc's threshold, and so not that count") {
  MemoryMeter meter;
  { auto large = floats(10 << 20); }  // 40 MiB
  { auto small = floats(1 << 20); }
  CHECK(meter.counts().largest_block == 40 << 20);
  CHECK(meter.counts().largest_freed_small_block == 4 << 20);
}

TEST_CASE("MemoryMeter: blocks from before the meter do not count, not even with a size LibTorch remembers") {
  auto before = floats(1000);
  {
    // Leaves an entry in LibTorch's own table of sizes: allocated under a meter, freed without one.
    std::optional<at::Tensor> left;
    {
      MemoryMeter earlier;
      left = floats(3000);
    }
    left.reset();
  }
  auto again = floats(3000);  // likely the same address
  MemoryMeter meter;
  before = at::Tensor();
  again = at::Tensor();
  CHECK(meter.counts().bytes == 0);
  CHECK(meter.counts().frees == 0);
  auto after = floats(10);
  CHECK(meter.counts().bytes == 40);
  CHECK(meter.counts().peak_bytes == 40);
}

TEST_CASE("MemoryMeter: sees the backward pass") {
  auto x = torch::ones({1024}, torch::requires_grad());
  auto y = (x * x).sum();
  MemoryMeter meter;
  y.backward();
  CHECK(x.grad().defined());
  CHECK(meter.counts().bytes >= 4096);       // the gradient stays
  CHECK(meter.counts().peak_bytes >= 8192);  // x * grad is there twice before they are added
}

TEST_CASE("MemoryMeter: meters nest, and the outer one sees what the inner one does") {
  MemoryMeter outer;
  auto a = floats(100);
  at::Tensor b;
  {
    MemoryMeter inner;
    b = floats(200);
    CHECK(inner.counts().bytes == 800);
    CHECK(outer.counts().bytes == 1200);
  }
  auto c = floats(300);
  CHECK(outer.counts().bytes == 2400);
  b = at::Tensor();
  CHECK(outer.counts().bytes == 1600);
}

TEST_CASE("MemoryMeter: other threads and other devices are not in the count") {
  MemoryMeter meter;
  std::thread([] { auto elsewhere = floats(1000); }).join();
  CHECK(meter.counts().allocations == 0);
  CHECK(meter.counts({c10::kCUDA, 0}).allocations == 0);
}

TEST_CASE("MemoryMeter: refuses to share the hook with LibTorch's profiler, and leaves it working") {
  using namespace torch::autograd::profiler;
  enableProfilerLegacy(ProfilerConfig(ProfilerState::CPU, false, true));
  CHECK_THROWS_MATCHES(MemoryMeter(), saturate::StateError, MessageMatches(ContainsSubstring("profiler is running")));
  auto x = torch::ones({10});
  const auto events = disableProfilerLegacy();
  CHECK_FALSE(events.empty());
  CHECK_NOTHROW(MemoryMeter());
}

TEST_CASE("resident_peak_bytes: follows a touched block, and can start anew") {
  constexpr size_t size = size_t{64} << 20;
  constexpr int64_t most_of_it = int64_t{60} << 20;  // the kernel's counters lag a little
  const int64_t before = saturate::resident_bytes();
  REQUIRE(before > 0);
  void* block = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(block != MAP_FAILED);
  std::memset(block, 1, size);
  const int64_t peak = saturate::resident_peak_bytes();
  ::munmap(block, size);
  CHECK(peak >= before + most_of_it);
  CHECK(saturate::resident_peak_bytes() >= before + most_of_it);  // a peak does not sink by itself
  CHECK(saturate::resident_bytes() < peak - most_of_it + (int64_t{8} << 20));
  if (!saturate::reset_resident_peak()) SKIP("this kernel does not let a process reset its peak");
  CHECK(saturate::resident_peak_bytes() < before + most_of_it);
}

TEST_CASE("device_peak_bytes: the CPU's allocator keeps no statistics, and the message says what does") {
  CHECK_THROWS_MATCHES(saturate::device_peak_bytes(c10::kCPU), saturate::ConfigError,
                       MessageMatches(ContainsSubstring("MemoryMeter")));
  CHECK_THROWS_AS(saturate::reset_device_peak(c10::kMeta), saturate::ConfigError);
}

TEST_CASE("MemoryMeter and device_peak_bytes: CUDA blocks", "[gpu]") {
  if (!torch::cuda::is_available()) SKIP("no CUDA device");
  const c10::Device device(c10::kCUDA, 0);
  auto held = torch::empty({1 << 20}, device);
  saturate::reset_device_peak(device);
  const int64_t before = saturate::device_peak_bytes(device);
  MemoryMeter meter;
  { auto block = torch::empty({1 << 20}, device); }
  CHECK(meter.counts(device).peak_bytes == 4 << 20);
  CHECK(meter.counts(c10::kCUDA).peak_bytes == 4 << 20);
  CHECK(meter.counts().allocations == 0);
  CHECK(saturate::device_peak_bytes(device) == before + (4 << 20));
}
