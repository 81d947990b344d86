// SPDX-License-Identifier: Apache-2.0
// Every schedule against Python's (tests/oracle/schedules.txt), and what they refuse.
#include "saturate/schedule/schedule.hpp"
#include "saturate/error.hpp"
#include "saturate/schedule/decay.hpp"
#include "saturate/schedule/lr_scaling.hpp"
#include "saturate/schedule/one_cycle_lr.hpp"
#include "saturate/schedule/schedule_curve.hpp"
#include "saturate/schedule/sequence.hpp"
#include "saturate/schedule/step_lr.hpp"
#include "saturate/schedule/warmup.hpp"
#include "schedule_oracle.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace st = saturate;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

namespace {

// Largest relative difference over all steps of the case; below 1e-3 of the peak absolute, since Python's recursive
// forms lose digits there.
double curve_error(const std::string& name, const std::function<double(int64_t)>& value) {
  const std::vector<double> expected = oracle::values(name);
  REQUIRE(expected.size() >= 50);
  double worst = 0;
  for (std::size_t step = 0; step < expected.size(); ++step) {
    const double difference = std::abs(value(static_cast<int64_t>(step)) - expected[step]);
    worst = std::max(worst, difference / std::max(std::abs(expected[step]), 1e-3));
  }
  return worst;
}
template <class Schedule>
double error(const std::string& name, const Schedule& schedule) {
  schedule.validate();
  return curve_error(name, [&](int64_t step) { return schedule.factor(step); });
}

constexpr double tolerance = 1e-12;

void check_one_cycle(const std::string& name, const st::OneCycleLr& schedule) {
  INFO(name);
  CHECK(error(name, schedule) < tolerance);
  CHECK(curve_error(name + "_momentum", [&](int64_t step) { return *schedule.momentum(step); }) < tolerance);
  CHECK(schedule.factor(schedule.total + 1000) == schedule.factor(schedule.total - 1));
  CHECK(*schedule.momentum(schedule.total + 1000) == schedule.max_momentum);
}

template <class P>
P example() {
  return P{};
}
template <>
st::MultiStepLr example() {
  return {.milestones = {10, 20}};
}
template <>
st::Sequence example() {
  return {.schedules = {st::LinearLr{.total = 20}, st::ConstantLr{}}, .milestones = {30}};
}
template <>
st::PerGroup example() {
  return {.schedules = {st::ExponentialLr{.gamma = 0.9}, st::ConstantLr{}}};
}
template <>
st::Warmup<st::OneCycleLr> example() {
  return {10, st::OneCycleLr{.total = 50}};
}

template <class Schedule>
void refuses(const Schedule& schedule, const char* part) {
  CHECK_THROWS_MATCHES(schedule.validate(), st::ConfigError, MessageMatches(ContainsSubstring(part)));
}

// A near miss: no factor. And one whose factors depend on what it has seen.
struct WithoutFactor {
  double lr(int64_t) const { return 1; }
};
static_assert(!st::SchedulePolicy<WithoutFactor>);
static_assert(!std::is_constructible_v<st::AnySchedule, WithoutFactor>);

}  // namespace

TEST_CASE("schedules of one curve give Python's rates") {
  CHECK(error("linear", st::LinearLr{.start_factor = 1.0 / 3, .end_factor = 1, .total = 20}) < tolerance);
  CHECK(error("linear_down", st::LinearLr{.end_factor = 0.1, .total = 45}) < tolerance);
  CHECK(error("cosine", st::CosineAnnealingLr{.total = 59}) < tolerance);
  CHECK(error("cosine_final", st::CosineAnnealingLr{.total = 70, .final_factor = 0.05}) < tolerance);
  CHECK(error("polynomial", st::PolynomialLr{.total = 50}) < tolerance);
  CHECK(error("polynomial_power", st::PolynomialLr{.total = 40, .power = 2.5}) < tolerance);
  CHECK(error("exponential", st::ExponentialLr{.gamma = 0.95}) < tolerance);
  CHECK(error("inverse_sqrt", st::InverseSqrtLr{.warmup = 12}) < tolerance);
  // The measure can tell: one step late is far off.
  CHECK(error("cosine", st::CosineAnnealingLr{.total = 58}) > 1e-3);
}

TEST_CASE("schedules in stairs give Python's rates") {
  CHECK(error("step", st::StepLr{.step_size = 7, .gamma = 0.5}) < tolerance);
  CHECK(error("multi_step", st::MultiStepLr{.milestones = {5, 20, 20, 41}, .gamma = 0.3}) < tolerance);
}

TEST_CASE("one-cycle gives Python's rates and momenta") {
  using Anneal = st::OneCycleLr::Anneal;
  check_one_cycle("one_cycle", {.total = 60});
  check_one_cycle("one_cycle_linear", {.total = 61,
                                       .pct_start = 0.45,
                                       .anneal = Anneal::linear,
                                       .div_factor = 10,
                                       .final_div_factor = 100,
                                       .base_momentum = 0.8,
                                       .max_momentum = 0.9});
  check_one_cycle("one_cycle_three", {.total = 67, .three_phase = true});
  check_one_cycle(
      "one_cycle_three_linear",
      {.total = 55, .pct_start = 0.21, .anneal = Anneal::linear, .three_phase = true, .final_div_factor = 10});
  check_one_cycle("one_cycle_no_rise", {.total = 52, .pct_start = 0});
  CHECK_FALSE(st::OneCycleLr{.total = 60, .cycle_momentum = false}.momentum(3).has_value());
}

TEST_CASE("a one-cycle whose rise has no length starts at the peak instead of dividing by zero") {
  const st::OneCycleLr schedule{.total = 10, .pct_start = 0.1};
  CHECK(schedule.factor(0) == 1);
  CHECK(st::OneCycleLr{.total = 1}.factor(0) > 0);
  CHECK(std::isfinite(st::OneCycleLr{.total = 1, .pct_start = 1}.factor(0)));
}

TEST_CASE("warm-up goes before any schedule") {
  CHECK(error("warmup_polynomial", st::Warmup{8, st::PolynomialLr{.total = 40, .power = 2}}) < tolerance);
  CHECK(error("warmup_cosine", st::WarmupCosine{.warmup = 5, .total = 60}) < tolerance);
  CHECK(error("warmup_cosine_final", st::WarmupCosine{.warmup = 10, .total = 60, .final_factor = 0.1}) < tolerance);
  CHECK(st::WarmupCosine{.warmup = 5, .total = 40, .final_factor = 0.25}.factor(1000) == 0.25);
  CHECK(st::WarmupCosine{.warmup = 0, .total = 10}.factor(0) == 1.0);
  refuses(st::WarmupCosine{.warmup = 10, .total = 10}, "warmup is 10");
  const st::WarmupCosine whole{.warmup = 5, .total = 40, .final_factor = 0.1};
  const st::Warmup parts{5, st::CosineAnnealingLr{.total = 35, .final_factor = 0.1}};
  for (int64_t step = 0; step < 60; ++step) CHECK(std::abs(whole.factor(step) - parts.factor(step)) < 1e-15);
  const st::Warmup late{4, st::LinearLr{.start_factor = 0.5, .end_factor = 0.25, .total = 10}};
  CHECK(late.factor(1) == 0.25);  // half of what the inner one starts with
  CHECK(late.factor(4) == 0.5);
  const st::Warmup cycle{10, st::OneCycleLr{.total = 50}};
  CHECK(cycle.momentum(3) == cycle.inner.momentum(0));
  CHECK(cycle.momentum(17) == cycle.inner.momentum(7));
  const st::Warmup nothing{0, st::ExponentialLr{.gamma = 0.9}};
  CHECK(nothing.factor(0) == 1);
  const st::Warmup nested{2, st::Warmup{2, st::ConstantLr{}}};
  CHECK(nested.factor(0) == 0.25);
}

TEST_CASE("in a sequence each schedule counts from its own start") {
  CHECK(error("sequence", st::Sequence{.schedules = {st::LinearLr{.start_factor = 0.1, .end_factor = 1, .total = 10},
                                                     st::ConstantLr{}, st::CosineAnnealingLr{.total = 29}},
                                       .milestones = {10, 30}}) < tolerance);
  const st::Sequence momenta{.schedules = {st::ConstantLr{}, st::OneCycleLr{.total = 30}}, .milestones = {4}};
  CHECK_FALSE(momenta.momentum(3).has_value());
  CHECK(momenta.momentum(6) == st::OneCycleLr{.total = 30}.momentum(2));
  const st::Sequence inside{.schedules = {momenta, st::ConstantLr{}}, .milestones = {20}};
  CHECK(inside.factor(6) == momenta.factor(6));
  CHECK(inside.factor(20) == 1);
}

TEST_CASE("each parameter group has a schedule of its own") {
  const st::PerGroup schedule{.schedules = {st::InverseSqrtLr{.warmup = 9}, st::ExponentialLr{.gamma = 0.93}}};
  CHECK(error("group_0", schedule) < tolerance);
  CHECK(curve_error("group_1", [&](int64_t step) { return schedule.factor(step, 1); }) < tolerance);
  CHECK(schedule.group_factors(7) == std::vector<double>{schedule.factor(7, 0), schedule.factor(7, 1)});
  CHECK_THROWS_MATCHES(schedule.factor(0, 2), st::ConfigError, MessageMatches(ContainsSubstring("group 2")));
  CHECK_THROWS_MATCHES(schedule.check_groups(3), st::ConfigError, MessageMatches(ContainsSubstring("3 parameter")));
  schedule.check_groups(2);
}

TEMPLATE_TEST_CASE("conformance: every closed-form schedule", "[conformance]", st::LinearLr, st::CosineAnnealingLr,
                   st::PolynomialLr, st::ExponentialLr, st::InverseSqrtLr, st::StepLr, st::MultiStepLr, st::OneCycleLr,
                   st::Warmup<st::OneCycleLr>, st::Sequence, st::PerGroup) {
  const auto policy = example<TestType>();
  policy.validate();
  std::vector<double> forwards, backwards;
  for (int64_t step = 0; step < 100; ++step) forwards.push_back(policy.factor(step));
  for (int64_t step = 99; step >= 0; --step) backwards.insert(backwards.begin(), policy.factor(step));
  CHECK(forwards == backwards);  // a closed form: the order of asking does not matter
  for (const double factor : forwards) CHECK((std::isfinite(factor) && factor >= 0));
  const double far = policy.factor(int64_t{1} << 40);
  CHECK((std::isfinite(far) && far >= 0));
  const st::AnySchedule any(st::Warmup{3, st::ConstantLr{}}), copy = any;
  CHECK(copy.factor(1) == any.factor(1));
}

TEST_CASE("schedules refuse settings that cannot work") {
  refuses(st::LinearLr{.start_factor = -1}, "start_factor is -1");
  refuses(st::LinearLr{.end_factor = INFINITY}, "end_factor is inf");
  refuses(st::LinearLr{.total = 0}, "total is 0");
  refuses(st::CosineAnnealingLr{.total = 0}, "total is 0");
  refuses(st::CosineAnnealingLr{.final_factor = NAN}, "final_factor is nan");
  refuses(st::PolynomialLr{.power = 0}, "power is 0");
  refuses(st::ExponentialLr{.gamma = 1.5}, "gamma is 1.5");
  refuses(st::InverseSqrtLr{.warmup = 0}, "warmup is 0");
  refuses(st::StepLr{.step_size = 0}, "step_size is 0");
  refuses(st::StepLr{.gamma = 0}, "gamma is 0");
  refuses(st::MultiStepLr{}, "no milestones");
  refuses(st::MultiStepLr{.milestones = {5, 3}}, "5, 3");
  refuses(st::OneCycleLr{.total = 0}, "total is 0");
  refuses(st::OneCycleLr{.pct_start = 0.6, .three_phase = true}, "[0, 0.5]");
  refuses(st::OneCycleLr{.div_factor = 0}, "div_factor is 0");
  refuses(st::OneCycleLr{.max_momentum = 1}, "max_momentum is 1");
  refuses(st::Warmup{-1, st::ConstantLr{}}, "steps is -1");
  refuses(st::Warmup{1, st::StepLr{.step_size = 0}}, "StepLr");
  refuses(st::Sequence{}, "no schedules");
  refuses(st::Sequence{.schedules = {st::ConstantLr{}, st::ConstantLr{}}}, "2 schedules and 0 milestones");
  refuses(st::Sequence{.schedules = {st::ConstantLr{}, st::ConstantLr{}}, .milestones = {0}}, "milestones are 0");
  refuses(st::Sequence{.schedules = {st::LinearLr{.total = 0}}}, "LinearLr");
  refuses(st::PerGroup{}, "no schedules");
}

TEST_CASE("the learning rate follows the batch by the line or the square root") {
  CHECK(st::linear_scaling(0.1, 1024, 256) == 0.4);
  CHECK(st::sqrt_scaling(0.1, 1024, 256) == 0.2);
  CHECK(st::linear_scaling(0.4, 64, 256) == 0.1);
  CHECK_THROWS_AS(st::linear_scaling(0.1, 0, 256), st::ConfigError);
  CHECK_THROWS_AS(st::sqrt_scaling(NAN, 1, 256), st::ConfigError);
  CHECK(st::suggest_lr("SGD", 0.1, 256, 256).empty());
  CHECK_THAT(st::suggest_lr("SGD", 0.1, 1024, 256), ContainsSubstring("from 256 to 1024") && ContainsSubstring("0.4") &&
                                                        ContainsSubstring("Goyal") && ContainsSubstring("Warm up"));
  CHECK_THAT(st::suggest_lr("AdamW", 0.1, 1024, 256), ContainsSubstring("0.2") && ContainsSubstring("Malladi"));
  CHECK_THAT(st::suggest_lr("SGD", 0.1, 64, 256), !ContainsSubstring("Warm up"));
}

TEST_CASE("a curve for plotting has both ends and no more points than asked for") {
  const st::LinearLr schedule{.end_factor = 0, .total = 999};
  const auto curve = st::schedule_curve(schedule, 0.5, 1000, 11);
  REQUIRE(curve.size() == 11);
  CHECK((curve.front().step == 0 && curve.front().lr == 0.5));
  CHECK((curve.back().step == 999 && curve.back().lr == 0));
  for (std::size_t i = 1; i < curve.size(); ++i) CHECK(curve[i].step > curve[i - 1].step);
  CHECK(st::schedule_curve(schedule, 0.5, 3).size() == 3);
  CHECK(st::schedule_curve(schedule, 0.5, 1).size() == 1);
  CHECK_THROWS_AS(st::schedule_curve(schedule, 0.5, 0), st::ConfigError);
  CHECK_THROWS_AS(st::schedule_curve(schedule, 0.5, 10, 1), st::ConfigError);
}
