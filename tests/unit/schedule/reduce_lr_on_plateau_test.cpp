// SPDX-License-Identifier: Apache-2.0
// The plateau schedule against Python's over a series with falls, stalls and a NaN (tests/oracle/schedules.txt).
#include "saturate/schedule/reduce_lr_on_plateau.hpp"
#include "saturate/error.hpp"
#include "saturate/schedule/warmup.hpp"
#include "saturate/trainer/events.hpp"
#include "schedule_oracle.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <cmath>
#include <string>
#include <vector>

namespace st = saturate;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

namespace {

// The same series as make_schedules.py's.
double metric(int i) {
  if (i == 23) return NAN;
  return 2.0 / (1 + 0.3 * std::min(i, 12)) + (i > 6 ? 0.002 * std::sin(3.0 * i) : 0.0) - (i > 40 ? 0.4 : 0.0);
}

void check(const std::string& name, const st::PlateauOptions& options) {
  INFO(name);
  st::ReduceLrOnPlateau schedule(options);
  const std::vector<double> expected = oracle::values(name);
  REQUIRE(expected.size() == 70);
  REQUIRE(expected.front() != expected.back());
  int64_t revision = schedule.revision();
  double before = 1;
  for (int i = 0; i < 70; ++i) {
    schedule.observe(options.mode == st::PlateauMode::max ? 3 - metric(i) : metric(i));
    const double now = schedule.factor(i);
    CHECK(std::abs(now - expected[static_cast<std::size_t>(i)]) <= 1e-12 * now);
    CHECK((schedule.revision() > revision) == (now != before));  // grows exactly when the factor changes
    revision = schedule.revision();
    before = now;
  }
  CHECK(schedule.state().observations == 70);
}

}  // namespace

TEST_CASE("a plateau schedule gives Python's rates") {
  using st::PlateauMode, st::PlateauThreshold;
  check("plateau", {.patience = 2});
  check("plateau_cooldown", {.reduce_by = 0.5, .patience = 1, .cooldown = 4, .min_factor = 0.1});
  check("plateau_abs", {.reduce_by = 0.7, .patience = 3, .threshold = 0.01, .threshold_mode = PlateauThreshold::abs});
  check("plateau_max", {.mode = PlateauMode::max, .reduce_by = 0.3, .patience = 2, .threshold = 0.001});
  check("plateau_max_abs", {.mode = PlateauMode::max,
                            .reduce_by = 0.3,
                            .patience = 0,
                            .threshold = 0.02,
                            .threshold_mode = PlateauThreshold::abs,
                            .cooldown = 1,
                            .eps = 1e-3});
}

TEST_CASE("a plateau schedule stopped and restored goes on as if it had not been") {
  const st::PlateauOptions options{.reduce_by = 0.5, .patience = 1, .cooldown = 2};
  st::ReduceLrOnPlateau whole(options), first(options), second(options);
  for (int i = 0; i < 70; ++i) {
    whole.observe(metric(i));
    (i < 33 ? first : second).observe(metric(i));
    if (i == 32) {
      const int64_t revision = second.revision();
      second.load_state(first.state());
      CHECK(second.revision() > revision);
    }
  }
  CHECK(second.state() == whole.state());
  const st::PlateauState before = second.state();
  CHECK_THROWS_AS(second.load_state({.factor = 2}), st::StateError);
  CHECK_THROWS_AS(second.load_state({.bad = -1}), st::StateError);
  CHECK(second.state() == before);
}

TEST_CASE("a plateau schedule picks its metric from an evaluation") {
  st::ReduceLrOnPlateau schedule({.metric = "accuracy", .mode = st::PlateauMode::max, .patience = 0});
  st::TrainerState state;
  const st::Metrics good{{"accuracy", 0.5}, {"loss", 9}}, worse{{"accuracy", 0.4}}, wrong{{"loss", 1}};
  schedule.on_evaluate({state, good});
  CHECK(schedule.factor(0) == 1);
  schedule.on_evaluate({state, worse});
  CHECK(schedule.factor(0) == 0.1);
  CHECK_THROWS_MATCHES(schedule.on_evaluate({state, wrong}), st::ConfigError,
                       MessageMatches(ContainsSubstring("measures: loss")));
  CHECK(schedule.state().observations == 2);
}

TEST_CASE("a plateau schedule after a warm-up") {
  st::Warmup schedule{4, st::ReduceLrOnPlateau({.reduce_by = 0.5, .patience = 0})};
  st::TrainerState state;
  const st::Metrics flat{{"loss", 1.0}};
  CHECK(schedule.factor(0) == 0.25);
  schedule.on_evaluate({state, flat});
  schedule.observe(1.0);
  CHECK(schedule.revision() == 1);
  CHECK(schedule.factor(0) == 0.125);
  CHECK(schedule.factor(4) == 0.5);
}

TEST_CASE("a plateau schedule refuses settings that cannot work") {
  const auto refuses = [](const st::PlateauOptions& options, const char* part) {
    CHECK_THROWS_MATCHES(st::ReduceLrOnPlateau(options), st::ConfigError, MessageMatches(ContainsSubstring(part)));
  };
  refuses({.metric = ""}, "metric");
  refuses({.reduce_by = 1}, "reduce_by is 1");
  refuses({.patience = -1}, "patience is -1");
  refuses({.threshold = 1}, "threshold is 1");
  refuses({.threshold = NAN}, "threshold is nan");
  refuses({.cooldown = -1}, "cooldown is -1");
  refuses({.min_factor = 2}, "min_factor is 2");
  refuses({.eps = -1}, "eps is -1");
}
