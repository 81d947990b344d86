// SPDX-License-Identifier: Apache-2.0
#include "saturate/trainer/callbacks/early_stop.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <limits>
#include <vector>

#include "saturate/error.hpp"

using namespace saturate;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

namespace {

// The number of evaluations after which the run was told to stop; 0: never.
size_t stops_after(EarlyStop& stop, const std::vector<double>& values, const std::string& metric = "loss") {
  TrainerState state;
  stop.on_fit_begin({state});
  for (size_t i = 0; i < values.size(); ++i) {
    state.step = static_cast<int64_t>(10 * (i + 1));
    const Metrics metrics{{metric, values[i]}};
    stop.on_evaluate({state, metrics});
    if (state.stop) return i + 1;
  }
  return 0;
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

}  // namespace

TEST_CASE("EarlyStop: stops at the patience-th evaluation in a row that is no better") {
  EarlyStop stop({.patience = 2});
  CHECK(stops_after(stop, {5, 4, 4.5, 3, 3, 3.5, 1}) == 6);
  CHECK(stop.best() == 3.0);
  CHECK(stop.best_step() == 40);
  CHECK(stop.stopped());
  CHECK(stops_after(stop, {9, 8, 7}) == 0);  // a new fit starts anew
  CHECK(stop.best() == 7.0);
  CHECK_FALSE(stop.stopped());
}

TEST_CASE("EarlyStop: min_delta asks for more than noise, in either direction") {
  EarlyStop lower({.patience = 2, .min_delta = 0.1});
  CHECK(stops_after(lower, {1.0, 0.95, 0.92}) == 3);
  CHECK(lower.best() == 1.0);
  EarlyStop higher({.metric = "accuracy", .patience = 2, .min_delta = 0.01, .better = EarlyStop::Better::higher});
  CHECK(stops_after(higher, {0.5, 0.6, 0.605, 0.62, 0.1, 0.625}, "accuracy") == 6);
  CHECK(higher.best() == 0.62);
}

TEST_CASE("EarlyStop: NaN is never better, and does not hide a later value") {
  EarlyStop stop({.patience = 3});
  CHECK(stops_after(stop, {kNan, kNan, 2, kNan, kNan, 1}) == 0);
  CHECK(stop.best() == 1.0);
  CHECK(stops_after(stop, {kNan, kNan, kNan}) == 3);
  CHECK_FALSE(stop.best().has_value());
}

TEST_CASE("EarlyStop: a metric that is not measured is an error that lists those that are") {
  EarlyStop stop({.metric = "acuracy"});
  TrainerState state;
  const Metrics metrics{{"accuracy", 0.5}, {"loss", 1.0}};
  CHECK_THROWS_MATCHES(stop.on_evaluate({state, metrics}), ConfigError,
                       MessageMatches(ContainsSubstring("\"acuracy\"") && ContainsSubstring("accuracy, loss")));
  CHECK_FALSE(state.stop);
}

TEST_CASE("EarlyStop: settings that cannot work are refused") {
  CHECK_THROWS_AS(EarlyStop({.metric = ""}), ConfigError);
  CHECK_THROWS_AS(EarlyStop({.patience = 0}), ConfigError);
  CHECK_THROWS_AS(EarlyStop({.min_delta = -0.1}), ConfigError);
  CHECK_THROWS_AS(EarlyStop({.min_delta = kNan}), ConfigError);
}
