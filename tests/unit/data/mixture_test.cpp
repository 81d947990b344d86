// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/mixture_source.hpp"

#include "saturate/data/tensor_source.hpp"
#include "saturate/error.hpp"
#include "unit/data/sources.hpp"

#include <torch/torch.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <cmath>
#include <limits>
#include <numeric>
#include <set>

using namespace saturate::data;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;
using saturate::ConfigError;
using saturate::DataError;
using saturate::test::Numbers;
using Order = std::vector<int64_t>;

namespace {

int64_t total(const Order& sizes) { return std::accumulate(sizes.begin(), sizes.end(), int64_t{0}); }

Order order_of(const Order& sizes, const MixtureOptions& options, uint64_t seed = 0, int64_t epoch = 0) {
  const MixtureSampler sampler(sizes, options);
  const Order order = sampler.order(total(sizes), seed, epoch);
  REQUIRE(static_cast<int64_t>(order.size()) == sampler.length(total(sizes)));
  return order;
}

/// The source at each position.
Order sources_of(const Order& order, const Order& sizes) {
  Order result;
  for (const int64_t index : order) {
    int64_t source = 0, end = sizes[0];
    while (index >= end) end += sizes[static_cast<std::size_t>(++source)];
    result.push_back(source);
  }
  return result;
}

void require_permutation(Order part, int64_t first, int64_t size) {
  std::sort(part.begin(), part.end());
  Order all(static_cast<std::size_t>(size));
  std::iota(all.begin(), all.end(), first);
  REQUIRE(part == all);
}

/// Says what it was asked for: its own number, and the mixture's position.
struct Asked {
  static constexpr std::size_t fields = 2;
  int64_t count;
  int64_t size() const { return count; }
  std::array<FieldLayout, fields> layout() const { return Numbers{}.layout(); }
  void read(const SampleAt& at, std::array<std::byte*, fields> out) const {
    const auto seed_and_epoch = static_cast<float>(static_cast<int64_t>(at.seed) * 100 + at.epoch);
    const int64_t number = at.index * 1000 + at.position;
    std::memcpy(out[0], &seed_and_epoch, sizeof seed_and_epoch);
    std::memcpy(out[1], &number, sizeof number);
  }
};

static_assert(Source<MixtureSource<Numbers, Asked>> && !GatheringSource<MixtureSource<Numbers, Asked>>);
static_assert(GatheringSource<MixtureSource<TensorSource<2>, TensorSource<2>>>);
static_assert(!GatheringSource<MixtureSource<TensorSource<2>, Numbers>>);

}  // namespace

TEST_CASE("A mixture takes the source that is furthest behind its share", "[data]") {
  // By hand: weight * (p + 1) - taken, the first of equals.
  REQUIRE(sources_of(order_of({9, 9}, {.weights = {1, 1}, .stop = MixtureStop::samples(6)}), {9, 9}) ==
          Order{0, 1, 0, 1, 0, 1});
  REQUIRE(sources_of(order_of({9, 9}, {.weights = {3, 1}, .stop = MixtureStop::samples(8)}), {9, 9}) ==
          Order{0, 0, 1, 0, 0, 0, 1, 0});
  REQUIRE(sources_of(order_of({9, 9, 9}, {.weights = {2, 5, 3}, .stop = MixtureStop::samples(10)}), {9, 9, 9}) ==
          Order{1, 2, 0, 1, 1, 2, 1, 0, 2, 1});
}

TEST_CASE("A mixture keeps the exact proportions at every length", "[data]") {
  const Order sizes{50, 7, 1000, 3};
  const std::vector<double> weights{0.37, 1.4, 0.011, 3};
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  const auto sources = sources_of(order_of(sizes, {.weights = weights, .stop = MixtureStop::samples(20000)}), sizes);
  std::vector<double> taken(4);
  double furthest = 0;
  for (std::size_t p = 0; p < sources.size(); ++p) {
    ++taken[static_cast<std::size_t>(sources[p])];
    for (std::size_t s = 0; s < 4; ++s) {
      furthest = std::max(furthest, std::abs(taken[s] - weights[s] / sum * static_cast<double>(p + 1)));
    }
  }
  REQUIRE(furthest < 1.5);
}

TEST_CASE("A mixture's sources and length depend on neither seed nor epoch, its samples on both", "[data]") {
  const Order sizes{100, 40};
  const MixtureOptions options{.weights = {2, 1}, .stop = MixtureStop::all_exhausted()};
  const Order first = order_of(sizes, options, 1, 0);
  REQUIRE(order_of(sizes, options, 1, 0) == first);
  for (const Order& other : {order_of(sizes, options, 2, 0), order_of(sizes, options, 1, 1)}) {
    REQUIRE(other != first);
    REQUIRE(sources_of(other, sizes) == sources_of(first, sizes));
  }
}

TEST_CASE("A mixture ends before a source that is empty, or after all of them", "[data]") {
  const Order sizes{6, 4};
  const Order first = order_of(sizes, {.weights = {1, 1}});
  REQUIRE(sources_of(first, sizes) == Order{0, 1, 0, 1, 0, 1, 0, 1, 0});  // 1 has no fifth
  REQUIRE(std::set<int64_t>(first.begin(), first.end()).size() == first.size());

  const Order all = order_of(sizes, {.weights = {1, 1}, .stop = MixtureStop::all_exhausted()});
  REQUIRE(all.size() == 11);
  Order of_each[2];
  for (const int64_t index : all) of_each[index >= 6].push_back(index);
  require_permutation(of_each[0], 0, 6);
  REQUIRE(of_each[1].size() == 5);
  require_permutation(Order(of_each[1].begin(), of_each[1].begin() + 4), 6, 4);

  REQUIRE(order_of({1, 1}, {.weights = {1, 1}}).size() == 2);
  REQUIRE(order_of({1, 50}, {.weights = {1, 1}}).size() == 2);
  REQUIRE(order_of({5}, {.weights = {0.3}}).size() == 5);
}

TEST_CASE("A source that starts again comes in another order, and all passes are whole", "[data]") {
  const Order sizes{30, 1000};
  const Order order = order_of(sizes, {.weights = {1, 1}, .stop = MixtureStop::samples(180)}, 3, 2);
  Order small;
  for (const int64_t index : order) {
    if (index < 30) small.push_back(index);
  }
  REQUIRE(small.size() == 90);
  const Order passes[] = {Order(small.begin(), small.begin() + 30), Order(small.begin() + 30, small.begin() + 60),
                          Order(small.begin() + 60, small.end())};
  for (const Order& pass : passes) require_permutation(pass, 0, 30);
  REQUIRE(passes[0] != passes[1]);
  REQUIRE(passes[1] != passes[2]);
  REQUIRE(passes[0] != passes[2]);
  // Two sources of one size are not shuffled alike.
  const Order twins = order_of({30, 30}, {.weights = {1, 1}});
  Order of_each[2];
  for (const int64_t index : twins) of_each[index / 30].push_back(index % 30);
  REQUIRE(of_each[0] != of_each[1]);
}

TEST_CASE("A mixture without shuffle takes each source in order", "[data]") {
  const MixtureOptions options{.weights = {2, 1}, .stop = MixtureStop::samples(9), .shuffle = false};
  REQUIRE(order_of({4, 10}, options, 5, 3) == Order{0, 4, 1, 2, 5, 3, 0, 6, 1});
}

TEST_CASE("Mixture orders are the same on every machine and in every release", "[data]") {
  // From an independent implementation in Python: these must never change, or a resumed run sees other batches.
  REQUIRE(order_of({5, 3}, {.weights = {2, 1}, .stop = MixtureStop::samples(12)}, 7, 1) ==
          Order{3, 7, 1, 4, 5, 0, 2, 6, 4, 1, 7, 0});
}

TEST_CASE("MixtureSource maps sample numbers and keeps seed, epoch and position", "[data]") {
  const MixtureSource mixture({.weights = {1, 1, 1}}, Numbers{3}, Asked{5}, Numbers{2});
  REQUIRE(mixture.size() == 10);
  REQUIRE(mixture.source_of(2) == 0);
  REQUIRE(mixture.source_of(3) == 1);
  REQUIRE(mixture.source_of(7) == 1);
  REQUIRE(mixture.source_of(9) == 2);
  REQUIRE_THROWS_AS(mixture.source_of(10), DataError);
  REQUIRE_THROWS_AS(mixture.source_of(-1), DataError);
  float value = 0;
  int64_t number = 0;
  const std::array<std::byte*, 2> out{reinterpret_cast<std::byte*>(&value), reinterpret_cast<std::byte*>(&number)};
  mixture.read({9, 4, 6, 77}, out);
  REQUIRE((value == 1 && number == 1));
  mixture.read({5, 4, 6, 77}, out);
  REQUIRE((value == 406 && number == 2077));
}

TEST_CASE("MixtureSource gathers stretches of its sources", "[data]") {
  const auto a = torch::arange(4, at::kFloat).view({4, 1}), b = torch::arange(100, 106, at::kFloat).view({6, 1});
  const auto ids = torch::arange(10, at::kLong);
  const MixtureSource mixture({.weights = {1, 1}}, TensorSource(a, ids.slice(0, 0, 4)),
                              TensorSource(b, ids.slice(0, 4)));
  const Order wanted{9, 3, 0, 0, 4, 5, 5, 1, 8};
  auto values = torch::full({9, 1}, -1.0f), targets = torch::full({9}, -1, at::kLong);
  mixture.gather(wanted, {static_cast<std::byte*>(values.mutable_data_ptr()),
                          static_cast<std::byte*>(targets.mutable_data_ptr())});
  const auto index = torch::tensor(wanted, at::kLong);
  REQUIRE(values.equal(torch::cat({a, b}).index_select(0, index)));
  REQUIRE(targets.equal(index));
  REQUIRE_THROWS_AS(mixture.gather(Order{10}, {}), DataError);
}

TEST_CASE("MixtureSource refuses sources of another layout, naming the field", "[data]") {
  const auto x = torch::zeros({4, 2}), y = torch::arange(4);
  const auto refused = [&](const TensorSource<2>& other, const char* words) {
    REQUIRE_THROWS_MATCHES(MixtureSource({.weights = {1, 1}}, TensorSource(x, y), other), ConfigError,
                           MessageMatches(ContainsSubstring("source 1") && ContainsSubstring(words)));
  };
  refused(TensorSource(torch::zeros({4, 3}), y), "field 0 of source 1 is Float [3], of source 0 Float [2]");
  refused(TensorSource(x, y.to(at::kInt)), "field 1 of source 1 is Int [], of source 0 Long []");
}

TEST_CASE("Mixtures that cannot work are refused before anything is made", "[data]") {
  const auto refused = [](Order sizes, MixtureOptions options, const char* words) {
    REQUIRE_THROWS_MATCHES(MixtureSampler(sizes, options), ConfigError, MessageMatches(ContainsSubstring(words)));
  };
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  refused({1, 2}, {.weights = {1}}, "1 weights for 2 sources");
  refused({1, 2}, {}, "0 weights for 2 sources");
  refused({1, 2}, {.weights = {1, 0}}, "weight of source 1 is 0");
  refused({1, 2}, {.weights = {-1, 1}}, "weight of source 0 is -1");
  refused({1, 2}, {.weights = {1, nan}}, "weight of source 1 is nan");
  refused({1, 2}, {.weights = {inf, 1}}, "weight of source 0 is inf");
  refused({1, 2}, {.weights = {1, 1e-30}}, "too small");
  refused({1, 0}, {.weights = {1, 1}}, "source 1 has 0 samples");
  refused({1, 2}, {.weights = {1, 1}, .stop = MixtureStop::samples(0)}, "samples is 0");
  REQUIRE_NOTHROW(MixtureSampler({1, 2}, {.weights = {1e308, 1e308}}));
  REQUIRE_THROWS_AS(MixtureSampler({1, 2}, {.weights = {1, 1}}).order(4, 0, 0), ConfigError);
  REQUIRE_THROWS_AS(MixtureSampler({1, 2}, {.weights = {1, 1}}).length(2), ConfigError);
  REQUIRE_THROWS_AS(MixtureSampler({1, 2}, {.weights = {1, 1}}).order(3, 0, -1), ConfigError);
}

TEST_CASE("Whole weights are exact, however large their ratio", "[data]") {
  const Order sizes{1000, 1};
  const auto order = order_of(sizes, {.weights = {2999, 1}, .stop = MixtureStop::all_exhausted()});
  // (p + 1) / 3000 > 2999 (p + 1) / 3000 - p first holds at p = 1500.
  REQUIRE(order.size() == 1501);
  REQUIRE(order.back() == 1000);
}

TEST_CASE("A mixture's name tells it from others", "[data]") {
  const MixtureOptions options{.weights = {2, 1}};
  MixtureOptions ascending = options, longer = options;
  ascending.shuffle = false;
  longer.stop = MixtureStop::samples(500);
  std::set<std::string> names;
  for (const MixtureSampler& sampler :
       {MixtureSampler({9, 9}, options), MixtureSampler({9, 8}, options), MixtureSampler({9, 9}, {.weights = {1, 2}}),
        MixtureSampler({9, 9}, ascending), MixtureSampler({9, 9}, longer)}) {
    names.insert(sampler.name());
  }
  REQUIRE(names.size() == 5);
  REQUIRE(MixtureSampler({9, 9}, options).name() == MixtureSampler({9, 9}, options).name());
}
