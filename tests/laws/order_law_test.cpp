// SPDX-License-Identifier: Apache-2.0
// Law 4: the order of samples is a function of seed and epoch only; not of workers, prefetch depth, dropout draws, or
// of other loaders.
#include "saturate/data/prefetch_loader.hpp"
#include "saturate/data/sampler.hpp"
#include "unit/data/sources.hpp"

#include <torch/torch.h>

#include <catch2/catch_test_macros.hpp>
#include <thread>

using namespace saturate::data;
using saturate::test::Numbers;

namespace {

constexpr int64_t samples = 103, epochs = 3;
constexpr uint64_t seed = 17;

/// What must make no difference.
struct Circumstances {
  int64_t workers, prefetch;
  bool draws, other_loader, slow_samples;
};

std::vector<Circumstances> all_circumstances() {
  std::vector<Circumstances> all;
  for (const int64_t workers : {0, 1, 2, 4}) {
    for (const int64_t prefetch : {1, 2, 7}) {
      for (const int noise : {0, 1, 2, 4}) {
        all.push_back({workers, prefetch, (noise & 1) != 0, (noise & 2) != 0, (noise & 4) != 0});
      }
    }
  }
  return all;
}

/// The samples of three epochs, with the circumstances going on around the loop.
template <class Loader>
std::vector<int64_t> run(const Circumstances& now) {
  Numbers source{samples};
  if (now.slow_samples) {
    source.before = [](int64_t index) {
      if (index % 7 == 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
    };
  }
  const LoaderOptions options{
      .batch_size = 8, .shuffle = true, .seed = seed, .workers = now.workers, .prefetch = now.prefetch};
  Loader loader(source, options), other(Numbers{20}, options);
  std::vector<int64_t> seen;
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    if (now.draws) torch::rand({static_cast<int64_t>(3 + epoch)});
    for (auto& batch : loader) {
      if (now.draws) torch::dropout(torch::ones({10}), 0.5, true);
      if (now.other_loader) saturate::test::samples_of(other);
      const auto* values = batch.target().template const_data_ptr<int64_t>();
      seen.insert(seen.end(), values, values + batch.target().numel());
    }
  }
  return seen;
}

/// The check of this law. @return the number of circumstances that change the order, or make it another than
/// `expected`.
template <class Loader>
int violations(const std::vector<int64_t>& expected) {
  int count = 0;
  for (const Circumstances& now : all_circumstances()) {
    torch::manual_seed(1);
    count += run<Loader>(now) != expected;
  }
  return count;
}

std::vector<int64_t> by_definition() {
  std::vector<int64_t> all;
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    const auto order = epoch_order(samples, true, seed, epoch);
    all.insert(all.end(), order.begin(), order.end());
  }
  return all;
}

// Broken loaders: the kind of mistake that the law is about.

/// Gathers rows in an order of its own.
template <class Derived>
class BrokenLoader {
 public:
  BrokenLoader(Numbers source, LoaderOptions options) : source_(std::move(source)), options_(options) {}
  std::vector<Batch<2>>& epoch() {
    const auto order = static_cast<Derived*>(this)->order();
    batches_.clear();
    for (std::size_t first = 0; first < order.size(); first += 8) {
      const auto last = std::min(order.size(), first + 8);
      const auto target = torch::tensor(std::vector<int64_t>(order.begin() + first, order.begin() + last));
      batches_.push_back(Batch<2>{{target, target}});
    }
    return batches_;
  }
  auto begin() { return epoch().begin(); }
  auto end() { return batches_.end(); }

 protected:
  Numbers source_;
  LoaderOptions options_;
  int64_t epoch_ = 0;
  std::vector<Batch<2>> batches_;
};

/// Draws its order from torch's generator, as torch::data's RandomSampler does.
struct TorchGeneratorLoader : BrokenLoader<TorchGeneratorLoader> {
  using BrokenLoader::BrokenLoader;
  std::vector<int64_t> order() {
    const auto drawn = torch::randperm(source_.count, at::kLong);
    return {drawn.const_data_ptr<int64_t>(), drawn.const_data_ptr<int64_t>() + drawn.numel()};
  }
};

/// Gives each worker a part of the data to shuffle, as sharded iterable data sets do.
struct WorkerShardsLoader : BrokenLoader<WorkerShardsLoader> {
  using BrokenLoader::BrokenLoader;
  std::vector<int64_t> order() {
    auto order = epoch_order(source_.count, true, options_.seed, epoch_++);
    const int64_t shards = std::max<int64_t>(options_.workers, 1);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return a % shards < b % shards; });
    return order;
  }
};

/// Repeats epoch 0: a function of the seed alone.
struct SameEpochLoader : BrokenLoader<SameEpochLoader> {
  using BrokenLoader::BrokenLoader;
  std::vector<int64_t> order() { return epoch_order(source_.count, true, options_.seed, 0); }
};

/// Hands batches over in the order in which they become ready.
class FirstReadyLoader {
 public:
  FirstReadyLoader(Numbers source, LoaderOptions options) : inner_(std::move(source), options), options_(options) {}
  std::vector<Batch<2>>& epoch() {
    batches_.clear();
    for (auto& batch : inner_) batches_.push_back({{batch.data().clone(), batch.target().clone()}});
    if (options_.workers > 1) std::swap(batches_[0], batches_[1]);  // what a race does now and then, here every time
    return batches_;
  }
  auto begin() { return epoch().begin(); }
  auto end() { return batches_.end(); }

 private:
  PrefetchLoader<Numbers> inner_;
  LoaderOptions options_;
  std::vector<Batch<2>> batches_;
};

}  // namespace

TEST_CASE("law 4: the order of samples is a function of seed and epoch only", "[laws][data]") {
  REQUIRE(violations<PrefetchLoader<Numbers>>(by_definition()) == 0);
}

TEST_CASE("law 4: the check fails on loaders whose order depends on more, or on less", "[laws][data]") {
  torch::manual_seed(1);
  REQUIRE(violations<TorchGeneratorLoader>(run<TorchGeneratorLoader>(all_circumstances().front())) > 0);
  REQUIRE(violations<WorkerShardsLoader>(by_definition()) > 0);
  REQUIRE(violations<SameEpochLoader>(by_definition()) > 0);
  REQUIRE(violations<FirstReadyLoader>(by_definition()) > 0);
}
