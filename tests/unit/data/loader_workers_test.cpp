// SPDX-License-Identifier: Apache-2.0
// workers = auto: the rule alone, and that it changes nothing but the number of threads.
#include "saturate/data/prefetch_loader.hpp"
#include "saturate/data/stage.hpp"
#include "src/data/worker_count.hpp"
#include "unit/data/sources.hpp"

#include <torch/torch.h>

#include <sched.h>
#include <catch2/catch_test_macros.hpp>

using namespace saturate::data;
using saturate::test::eventually;
using saturate::test::Numbers;
using saturate::test::samples_of;

namespace {

int64_t after(saturate::data::detail::WorkerCount& count, int requests, int64_t ready, int64_t depth = 4) {
  for (int i = 0; i < requests; ++i) count.observe(ready, depth);
  return count.wanted();
}

}  // namespace

TEST_CASE("a thread is added while the loop waits, up to the most", "[data]") {
  saturate::data::detail::WorkerCount count(3);
  REQUIRE(count.wanted() == 1);
  REQUIRE(after(count, 7, 0) == 1);
  REQUIRE(after(count, 1, 0) == 2);
  REQUIRE(after(count, 8, 0) == 3);
  REQUIRE(after(count, 80, 0) == 3);
}

TEST_CASE("one wait among eight requests is no reason, nor is a ring that is partly full", "[data]") {
  saturate::data::detail::WorkerCount count(4);
  for (int round = 0; round < 20; ++round) {
    count.observe(0, 4);
    after(count, 7, 2);
  }
  REQUIRE(count.wanted() == 1);
}

TEST_CASE("a thread goes when everything is always ready, and comes back when it is missed, for longer", "[data]") {
  saturate::data::detail::WorkerCount count(4);
  REQUIRE(after(count, 16, 0) == 3);
  REQUIRE(after(count, 31, 4) == 3);
  REQUIRE(after(count, 1, 4) == 2);
  REQUIRE(after(count, 8, 0) == 3);   // it was missed
  REQUIRE(after(count, 32, 4) == 3);  // so this time four windows are not enough
  REQUIRE(after(count, 32, 4) == 2);
  REQUIRE(after(count, 2000, 4) == 1);
  REQUIRE(after(count, 2000, 4) == 1);
}

TEST_CASE("auto begins with one thread, grows under load and gives the same batches", "[data]") {
  Numbers slow{400};
  slow.before = [](int64_t) { std::this_thread::sleep_for(std::chrono::microseconds(200)); };
  PrefetchLoader loader(slow, {.batch_size = 4, .shuffle = true, .seed = 2, .workers = auto_workers});
  REQUIRE(loader.stats().workers == 1);
  for (int64_t epoch = 0; epoch < 3; ++epoch) REQUIRE(samples_of(loader) == epoch_order(400, true, 2, epoch));
  ::cpu_set_t set;
  REQUIRE(::sched_getaffinity(0, sizeof set, &set) == 0);
  if (CPU_COUNT(&set) > 1) REQUIRE(loader.stats().workers > 1);
  REQUIRE(loader.stats().workers <= std::min<int64_t>(CPU_COUNT(&set), 4));
}

TEST_CASE("stats name the stages that a source times, and the bytes it read", "[data]") {
  struct Staged : Numbers {
    void read(int64_t index, std::array<std::byte*, 2> out) const {
      {
        const StageScope timed(Stage::read);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      count_bytes(1000);
      {
        const StageScope timed(Stage::decode);
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      saturate::test::write_number(index, out);
    }
  };
  for (const int64_t workers : {0, 2}) {
    PrefetchLoader loader(Staged{Numbers{20}}, {.batch_size = 5, .workers = workers});
    samples_of(loader);
    const LoaderStats stats = loader.stats();
    REQUIRE(stats.samples == 20);
    REQUIRE(stats.bytes == 20000);
    REQUIRE(stats.read_seconds >= 0.020);
    REQUIRE(stats.decode_seconds >= 0.040);
    REQUIRE(stats.worker_seconds >= stats.read_seconds + stats.decode_seconds);
    REQUIRE(stats.occupancy <= 1);
  }
}

TEST_CASE("occupancy tells a loop that waits from one that is waited for", "[data]") {
  Numbers slow{40};
  slow.before = [](int64_t) { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
  PrefetchLoader starved(slow, {.batch_size = 4, .prefetch = 2});
  samples_of(starved);
  REQUIRE(starved.stats().occupancy < 0.5);

  const Numbers quick{40};
  PrefetchLoader fed(quick, {.batch_size = 4, .prefetch = 2});
  int64_t taken = 0;
  for ([[maybe_unused]] auto& batch : fed) {
    ++taken;
    REQUIRE(eventually([&] { return *quick.reads == std::min<int64_t>(40, 4 * (taken + 2)); }));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // from read to ready
  }
  REQUIRE(fed.stats().occupancy > 0.5);
}
