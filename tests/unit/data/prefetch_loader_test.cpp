// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/prefetch_loader.hpp"

#include "saturate/data/sampler.hpp"
#include "saturate/data/tensor_source.hpp"
#include "saturate/error.hpp"
#include "saturate/log.hpp"
#include "unit/data/sources.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <latch>
#include <set>
#include <string>
#include <thread>

using namespace saturate::data;
using saturate::test::batches_of;
using saturate::test::eventually;
using saturate::test::Numbers;
using saturate::test::samples_of;

namespace {

/// Everything that is logged while it lives.
class Log {
 public:
  Log() { saturate::log::set_sink(&Log::add, this); }
  ~Log() { saturate::log::set_sink(nullptr, nullptr); }
  int count(const std::string& words) const {
    return static_cast<int>(std::count_if(
        lines_.begin(), lines_.end(), [&](const std::string& line) { return line.find(words) != std::string::npos; }));
  }

 private:
  static void add(saturate::log::Level, std::string_view message, void* self) {
    static_cast<Log*>(self)->lines_.emplace_back(message);
  }
  std::vector<std::string> lines_;
};

std::vector<std::size_t> sizes_of(int64_t samples, LoaderOptions options) {
  PrefetchLoader loader(Numbers{samples}, options);
  std::vector<std::size_t> sizes;
  for (const auto& batch : batches_of(loader)) sizes.push_back(batch.size());
  REQUIRE(static_cast<int64_t>(sizes.size()) == loader.batches_per_epoch());
  return sizes;
}

}  // namespace

TEST_CASE("an epoch has every sample once, in batches of the right size", "[data]") {
  for (const int64_t workers : {0, 1, 3}) {
    using Sizes = std::vector<std::size_t>;
    REQUIRE(sizes_of(10, {.batch_size = 4, .workers = workers}) == Sizes{4, 4, 2});
    REQUIRE(sizes_of(10, {.batch_size = 4, .drop_last = true, .workers = workers}) == Sizes{4, 4});
    REQUIRE(sizes_of(8, {.batch_size = 4, .drop_last = true, .workers = workers}) == Sizes{4, 4});
    REQUIRE(sizes_of(3, {.batch_size = 4, .workers = workers}) == Sizes{3});
    REQUIRE(sizes_of(1, {.batch_size = 1, .workers = workers}) == Sizes{1});
  }
}

TEST_CASE("drop_last on too few samples gives no batch, and says so", "[data]") {
  const Log log;
  REQUIRE(sizes_of(3, {.batch_size = 4, .drop_last = true}).empty());
  REQUIRE(log.count("drop_last leaves no batch: 3 samples") == 1);
}

TEST_CASE("batches hold the rows that index_select gives", "[data]") {
  const auto x = torch::rand({50, 3, 5}), y = torch::randint(0, 9, {50}, at::kLong);
  for (const int64_t workers : {0, 2}) {
    PrefetchLoader loader(TensorSource(x, y), {.batch_size = 8, .shuffle = true, .seed = 4, .workers = workers});
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      const auto order = torch::tensor(epoch_order(50, true, 4, epoch));
      int64_t first = 0;
      for (auto& batch : loader) {
        const auto indices = order.slice(0, first, first + batch.size());
        REQUIRE(batch.data().equal(x.index_select(0, indices)));
        REQUIRE(batch.target().equal(y.index_select(0, indices)));
        REQUIRE(reinterpret_cast<std::uintptr_t>(batch.data().const_data_ptr()) % 64 == 0);
        REQUIRE(reinterpret_cast<std::uintptr_t>(batch.target().const_data_ptr()) % 64 == 0);
        first += batch.size();
      }
      REQUIRE(first == 50);
    }
  }
}

TEST_CASE("a loop that is left early can start again, from batch 0", "[data]") {
  for (const int64_t workers : {0, 1, 2}) {
    PrefetchLoader loader(Numbers{100}, {.batch_size = 4, .workers = workers, .prefetch = 3});
    for (int round = 0; round < 20; ++round) {
      int taken = 0;
      for (auto& batch : loader) {
        REQUIRE(batch.target()[0].item<int64_t>() == 4 * taken);
        if (++taken == 1 + round % 5) break;
      }
    }
    REQUIRE(samples_of(loader) == epoch_order(100, false, 0, 0));
  }
}

TEST_CASE("epochs count on by themselves, and can be set", "[data]") {
  PrefetchLoader loader(Numbers{40}, {.batch_size = 8, .shuffle = true, .seed = 7});
  REQUIRE(samples_of(loader) == epoch_order(40, true, 7, 0));
  REQUIRE(samples_of(loader) == epoch_order(40, true, 7, 1));
  loader.set_epoch(11);
  REQUIRE(loader.epoch() == 11);
  REQUIRE(samples_of(loader) == epoch_order(40, true, 7, 11));
  REQUIRE(loader.epoch() == 12);
  loader.set_epoch(3, 2);  // from the third batch on
  const auto order = epoch_order(40, true, 7, 3);
  REQUIRE(samples_of(loader) == std::vector<int64_t>(order.begin() + 16, order.end()));
  REQUIRE(samples_of(loader) == epoch_order(40, true, 7, 4));
  loader.set_epoch(0, 5);
  REQUIRE(samples_of(loader).empty());
  REQUIRE_THROWS_AS(loader.set_epoch(-1), saturate::ConfigError);
  REQUIRE_THROWS_AS(loader.set_epoch(0, 6), saturate::ConfigError);
  REQUIRE_THROWS_AS(loader.set_epoch(0, -1), saturate::ConfigError);
}

TEST_CASE("no more than `prefetch` batches are read ahead of the loop", "[data]") {
  for (const int64_t workers : {1, 4}) {
    for (const int64_t prefetch : {1, 2, 5}) {
      const Numbers source{1000};
      PrefetchLoader loader(source, {.batch_size = 10, .workers = workers, .prefetch = prefetch});
      auto it = loader.begin();
      for (int64_t taken = 1; taken <= 4; ++taken, ++it) {
        REQUIRE(eventually([&] { return *source.reads == 10 * (taken + prefetch); }));
        std::this_thread::sleep_for(std::chrono::milliseconds(5));  // time to go too far
        REQUIRE(*source.reads == 10 * (taken + prefetch));
      }
    }
  }
}

TEST_CASE("without workers nothing is read ahead", "[data]") {
  const Numbers source{100};
  PrefetchLoader loader(source, {.batch_size = 10, .workers = 0});
  auto it = loader.begin();
  REQUIRE(*source.reads == 10);
  ++it;
  REQUIRE(*source.reads == 20);
}

TEST_CASE("a loop that keeps 16 batches is given new slots, and none of its batches changes", "[data]") {
  const Log log;
  PrefetchLoader loader(Numbers{400}, {.batch_size = 10, .workers = 1, .prefetch = 2});
  std::vector<Batch<2>> kept;
  std::set<const void*> places;
  for (auto& batch : loader) {
    kept.push_back(batch);
    places.insert(batch.data().const_data_ptr());
    if (kept.size() == 16) break;
  }
  for (auto& batch : loader) {  // other batches pass while the 16 are held
    for (const auto& old : kept) REQUIRE(batch.data().const_data_ptr() != old.data().const_data_ptr());
  }
  REQUIRE(places.size() == 16);
  for (std::size_t b = 0; b < kept.size(); ++b) {
    const auto first = static_cast<int64_t>(10 * b);
    REQUIRE(kept[b].target().equal(torch::arange(first, first + 10)));
    REQUIRE(kept[b].data().flatten().equal(torch::arange(first, first + 10, at::kFloat)));
  }
  const int64_t allocated = loader.stats().slot_allocations;
  REQUIRE(allocated >= 17);
  REQUIRE(log.count("more batches are kept") == 1);
  kept.clear();
  for (int epoch = 0; epoch < 3; ++epoch) samples_of(loader);
  REQUIRE(loader.stats().slot_allocations == allocated);  // all came back
}

TEST_CASE("slots are used again when a loop keeps nothing", "[data]") {
  const Log log;
  for (const int64_t workers : {0, 1, 2}) {
    PrefetchLoader loader(Numbers{1000}, {.batch_size = 10, .workers = workers, .prefetch = 2});
    for (int epoch = 0; epoch < 3; ++epoch) samples_of(loader);
    REQUIRE(loader.stats().batches == 300);
    REQUIRE(loader.stats().slot_allocations <= (workers == 0 ? 1 : 3 + workers));
  }
  REQUIRE(log.count("more batches are kept") == 0);
}

TEST_CASE("a slot is in use as long as any view of any of its tensors", "[data]") {
  PrefetchLoader loader(Numbers{100}, {.batch_size = 10, .workers = 0});
  at::Tensor view;
  {
    auto it = loader.begin();
    view = it->target().slice(0, 3, 5);
    ++it;
    REQUIRE(loader.stats().slot_allocations == 2);
    ++it;
    REQUIRE(loader.stats().slot_allocations == 2);
  }
  REQUIRE(view.equal(torch::tensor({3, 4}, at::kLong)));
}

TEST_CASE("batches outlive their loader", "[data]") {
  std::vector<Batch<2>> kept;
  {
    PrefetchLoader loader(Numbers{50}, {.batch_size = 10, .workers = 2});
    for (auto& batch : loader) kept.push_back(batch);
  }
  for (std::size_t b = 0; b < kept.size(); ++b) {
    const auto first = static_cast<int64_t>(10 * b);
    REQUIRE(kept[b].target().equal(torch::arange(first, first + 10)));
  }
  std::thread([batches = std::move(kept)]() mutable { batches.clear(); }).join();  // the last ones go on another thread
}

TEST_CASE("destruction joins with a full queue, with idle workers, and before the first epoch", "[data]") {
  { const PrefetchLoader unused(Numbers{100}, {.batch_size = 10, .workers = 2}); }
  for (int round = 0; round < 50; ++round) {
    PrefetchLoader loader(Numbers{100}, {.batch_size = 10, .workers = 2, .prefetch = 4});
    auto it = loader.begin();
    if (round % 2 == 0) ++it;
  }
  PrefetchLoader done(Numbers{100}, {.batch_size = 10, .workers = 2});
  samples_of(done);
}

TEST_CASE("destruction does not wait for a slow batch to be read to its end", "[data]") {
  Numbers source{1000000};
  std::latch busy(1);
  std::atomic<bool> announced{false};
  source.before = [&](int64_t index) {
    if (index < 1000) return;
    if (!announced.exchange(true)) busy.count_down();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the whole batch would take 20 s
  };
  int64_t before = 0;
  {
    PrefetchLoader loader(source, {.batch_size = 1000, .workers = 1});
    [[maybe_unused]] const auto it = loader.begin();
    busy.wait();
    before = *source.reads;
  }
  REQUIRE(*source.reads <= before + 100);
}

TEST_CASE("an epoch that is left while a sample is being read starts again at once", "[data]") {
  Numbers source{100};
  std::latch release(1);
  std::atomic<bool> stuck{false};
  source.before = [&](int64_t index) {
    if (index == 10 && !stuck.exchange(true)) release.wait();
  };
  PrefetchLoader loader(source, {.batch_size = 10, .workers = 2, .prefetch = 2});
  {
    [[maybe_unused]] const auto it = loader.begin();
    REQUIRE(eventually([&] { return stuck.load(); }));
  }
  REQUIRE(samples_of(loader) == epoch_order(100, false, 0, 0));  // the other worker reads
  release.count_down();
  REQUIRE(samples_of(loader) == epoch_order(100, false, 0, 0));
}

TEST_CASE("loaders that take turns do not disturb one another", "[data]") {
  PrefetchLoader train(Numbers{60}, {.batch_size = 4, .shuffle = true, .seed = 1, .workers = 2});
  PrefetchLoader test(Numbers{20}, {.batch_size = 5, .shuffle = true, .seed = 1});
  std::vector<int64_t> seen;
  for (auto& batch : train) {
    REQUIRE(samples_of(test).size() == 20);
    const auto* values = batch.target().const_data_ptr<int64_t>();
    seen.insert(seen.end(), values, values + batch.size());
  }
  REQUIRE(seen == epoch_order(60, true, 1, 0));
}

TEST_CASE("workers leave the number of threads and inference mode alone", "[data]") {
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  PrefetchLoader loader(TensorSource(torch::rand({64, 100}), torch::arange(64)), {.batch_size = 8, .workers = 2});
  samples_of(loader);
  int afterwards = 0;
  std::thread([&] { afterwards = at::get_num_threads(); }).join();
  REQUIRE(at::get_num_threads() == 2);
  REQUIRE(afterwards == 2);
  at::set_num_threads(threads);

  PrefetchLoader inline_loader(Numbers{20}, {.batch_size = 10, .workers = 0});
  const c10::InferenceMode inference;
  for (auto& batch : inline_loader) REQUIRE(!batch.data().is_inference());  // can be saved for backward later
}

TEST_CASE("pin_memory without CUDA warns and works", "[data]") {
  if (torch::cuda::is_available()) SKIP("there is a CUDA device");
  const Log log;
  PrefetchLoader loader(Numbers{30}, {.batch_size = 10, .pin_memory = true});
  REQUIRE(samples_of(loader) == epoch_order(30, false, 0, 0));
  REQUIRE(log.count("pin_memory has no effect") == 1);
}

TEST_CASE("a device that is not there is refused", "[data]") {
  const auto on = [](c10::Device device) { PrefetchLoader(Numbers{30}, {.batch_size = 10, .device = device}); };
  REQUIRE_THROWS_AS(on(c10::kMeta), saturate::ConfigError);
  REQUIRE_THROWS_AS(on(c10::Device(c10::kCUDA, 99)), saturate::ConfigError);
  if (!torch::cuda::is_available()) REQUIRE_THROWS_AS(on(c10::kCUDA), saturate::ConfigError);
}

TEST_CASE("options that cannot work are refused, those without effect warn", "[data]") {
  const auto with = [](LoaderOptions options) { PrefetchLoader(Numbers{30}, options); };
  REQUIRE_THROWS_AS(with({.batch_size = 0}), saturate::ConfigError);
  REQUIRE_THROWS_AS(with({.batch_size = 4, .workers = -2}), saturate::ConfigError);
  REQUIRE_THROWS_AS(with({.batch_size = 4, .prefetch = 0}), saturate::ConfigError);
  REQUIRE_THROWS_AS(PrefetchLoader(Numbers{0}, {.batch_size = 4}), saturate::DataError);
  const Log log;
  with({.batch_size = 4, .workers = 5, .prefetch = 2});
  REQUIRE(log.count("5 workers with prefetch 2") == 1);
}

TEST_CASE("stats tell reading from waiting", "[data]") {
  Numbers slow{20};
  slow.before = [](int64_t) { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
  PrefetchLoader here(slow, {.batch_size = 10, .workers = 0});
  samples_of(here);
  REQUIRE(here.stats().batches == 2);
  REQUIRE(here.stats().worker_seconds >= 0.020);
  REQUIRE(here.stats().wait_seconds >= here.stats().worker_seconds);

  PrefetchLoader ahead(slow, {.batch_size = 10, .workers = 1, .prefetch = 2});
  [[maybe_unused]] const auto it = ahead.begin();
  REQUIRE(ahead.stats().batches == 1);
  REQUIRE(ahead.stats().wait_seconds > 0);
  REQUIRE(eventually([&] { return ahead.stats().worker_seconds >= 0.020; }));  // the second batch, while nobody waits
  REQUIRE(ahead.stats().batches == 1);
}
