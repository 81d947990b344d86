// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/weighted_sampler.hpp"

#include "saturate/error.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;
using saturate::ConfigError;
using saturate::data::WeightedOptions;
using saturate::data::WeightedSampler;
using Order = std::vector<int64_t>;
using Weights = std::vector<double>;

namespace {

Order order_of(const Weights& weights, WeightedOptions options, uint64_t seed = 0, int64_t epoch = 0) {
  const WeightedSampler sampler(weights, options);
  const auto size = static_cast<int64_t>(weights.size());
  const Order order = sampler.order(size, seed, epoch);
  REQUIRE(static_cast<int64_t>(order.size()) == sampler.length(size));
  return order;
}

/// Sum of (observed - expected)^2 / expected over what can be drawn.
double chi_square(const std::map<Order, int64_t>& counts, const std::map<Order, double>& probabilities, double draws) {
  double sum = 0;
  for (const auto& [what, probability] : probabilities) {
    const auto found = counts.find(what);
    const double difference = (found == counts.end() ? 0 : static_cast<double>(found->second)) - probability * draws;
    sum += difference * difference / (probability * draws);
  }
  return sum;
}

}  // namespace

TEST_CASE("WeightedSampler draws in proportion to the weights", "[data]") {
  const Weights weights{5, 0, 1, 0.25, 3, 0.75, 0, 10};
  const double sum = 20;
  const int64_t draws = 200000;
  std::map<Order, int64_t> counts;
  for (const int64_t index : order_of(weights, {.num_samples = draws}, 11)) ++counts[{index}];
  std::map<Order, double> probabilities;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] > 0) probabilities[{static_cast<int64_t>(i)}] = weights[i] / sum;
  }
  REQUIRE(counts.size() == probabilities.size());            // never one of weight 0
  REQUIRE(chi_square(counts, probabilities, draws) < 20.5);  // 99.9 % of 5 degrees of freedom
}

TEST_CASE("WeightedSampler without replacement draws one after the other from what is left", "[data]") {
  const Weights weights{4, 0, 1, 2, 1};
  const double sum = 8;
  std::map<Order, double> probabilities;  // of each ordered pair
  for (int64_t a : {0, 2, 3, 4}) {
    for (int64_t b : {0, 2, 3, 4}) {
      const double first = weights[static_cast<std::size_t>(a)], second = weights[static_cast<std::size_t>(b)];
      if (a != b) probabilities[{a, b}] = first / sum * second / (sum - first);
    }
  }
  std::map<Order, int64_t> counts;
  const WeightedSampler sampler(weights, {.num_samples = 2, .replacement = false});
  for (int64_t epoch = 0; epoch < 20000; ++epoch) ++counts[sampler.order(5, 3, epoch)];
  REQUIRE(counts.size() == probabilities.size());
  REQUIRE(chi_square(counts, probabilities, 20000) < 31.3);  // 99.9 % of 11 degrees of freedom
}

TEST_CASE("WeightedSampler without replacement takes no sample twice, and all that are positive when asked", "[data]") {
  Weights weights;
  for (int i = 0; i < 1000; ++i) weights.push_back(i % 10);
  Order order = order_of(weights, {.num_samples = 900, .replacement = false}, 4, 2);
  std::sort(order.begin(), order.end());
  REQUIRE(std::adjacent_find(order.begin(), order.end()) == order.end());
  REQUIRE(std::none_of(order.begin(), order.end(), [](int64_t index) { return index % 10 == 0; }));
  REQUIRE(order_of({0, 3, 0}, {.num_samples = 1, .replacement = false}) == Order{1});
}

TEST_CASE("WeightedSampler's order is a function of seed and epoch", "[data]") {
  const Weights weights{1, 2, 3, 4, 5, 6, 7, 8};
  for (const bool replacement : {true, false}) {
    const WeightedOptions options{.num_samples = 8, .replacement = replacement};
    const Order order = order_of(weights, options, 5, 1);
    REQUIRE(order_of(weights, options, 5, 1) == order);
    REQUIRE(order_of(weights, options, 5, 2) != order);
    REQUIRE(order_of(weights, options, 6, 1) != order);
  }
  // From an independent implementation in Python: these must never change, or a resumed run sees other batches.
  REQUIRE(order_of(weights, {}, 5, 1) == Order{5, 7, 4, 5, 2, 5, 5, 4});
  REQUIRE(order_of(weights, {.replacement = false}, 5, 1) == Order{7, 1, 2, 4, 6, 3, 5, 0});
}

TEST_CASE("WeightedSampler holds for weights at the ends of double's range", "[data]") {
  REQUIRE(std::set<int64_t>{1} == [] {
    const Order order = order_of({1e-300, 1e300, 0, 1e-320}, {.num_samples = 1000});
    return std::set<int64_t>(order.begin(), order.end());
  }());
  const Order even = order_of({1e308, 1e308, 1e308}, {.num_samples = 3000});
  for (int64_t index = 0; index < 3; ++index) REQUIRE(std::count(even.begin(), even.end(), index) > 850);
  // Largest first: a smaller one wins once in 1e300 draws.
  REQUIRE(order_of({1e-300, 1e300, 0, 1}, {.num_samples = 3, .replacement = false}) == Order{1, 3, 0});
}

TEST_CASE("WeightedSampler has as many samples as weights unless told, and one weight will do", "[data]") {
  REQUIRE(order_of({0, 0, 2}, {}) == Order{2, 2, 2});
  REQUIRE(order_of({0, 0, 2}, {.num_samples = 7}).size() == 7);
}

TEST_CASE("WeightedSampler refuses weights that cannot be drawn from", "[data]") {
  const auto refused = [](const Weights& weights, WeightedOptions options, const char* words) {
    REQUIRE_THROWS_MATCHES(WeightedSampler(weights, options), ConfigError, MessageMatches(ContainsSubstring(words)));
  };
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  refused({1, -2}, {}, "weight 1 is -2");
  refused({nan, 2}, {}, "weight 0 is nan");
  refused({1, inf}, {}, "weight 1 is inf");
  refused({0, 0}, {}, "none of the 2 weights is positive");
  refused({}, {}, "none of the 0 weights is positive");
  refused({1, 2}, {.num_samples = -1}, "num_samples is -1");
  refused({1, 2, 0}, {.num_samples = 3, .replacement = false}, "only 2 weights are positive");
  refused({1, 2, 0}, {.replacement = false}, "3 samples are wanted");
  REQUIRE_THROWS_MATCHES(WeightedSampler({1, 2}).order(3, 0, 0), ConfigError,
                         MessageMatches(ContainsSubstring("2 weights, and the source has 3 samples")));
  REQUIRE_THROWS_AS(WeightedSampler({1, 2}).length(1), ConfigError);
  REQUIRE_THROWS_AS(WeightedSampler({1, 2}).order(2, 0, -1), ConfigError);
}

TEST_CASE("WeightedSampler's name tells other weights apart", "[data]") {
  REQUIRE(WeightedSampler({1, 2}).name() == WeightedSampler({1, 2}).name());
  REQUIRE(WeightedSampler({1, 2}).name() != WeightedSampler({2, 1}).name());
  REQUIRE(WeightedSampler({1, 2}).name() != WeightedSampler({1, 2}, {.num_samples = 3}).name());
  REQUIRE(WeightedSampler({1, 2}).name() != WeightedSampler({1, 2}, {.replacement = false}).name());
}
