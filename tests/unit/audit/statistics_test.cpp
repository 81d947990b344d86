// SPDX-License-Identifier: Apache-2.0
#include "saturate/audit/statistics.hpp"

#include <array>
#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cmath>

#include "saturate/error.hpp"

namespace saturate::audit {
namespace {

using Catch::Approx;
using Values = std::vector<double>;

TEST_CASE("median and quantiles equal hand values") {
  CHECK(median(Values{3}) == 3);
  CHECK(median(Values{9, 1, 5}) == 5);
  CHECK(median(Values{4, 1, 3, 2}) == 2.5);
  // numpy.quantile([1, 2, 3, 4, 10], [0, .25, .95, 1]) = [1, 2, 8.8, 10]
  const Values v{10, 1, 3, 2, 4};
  CHECK(quantile(v, 0) == 1);
  CHECK(quantile(v, 0.25) == 2);
  CHECK(quantile(v, 0.95) == Approx(8.8).epsilon(1e-12));
  CHECK(quantile(v, 1) == 10);
}

TEST_CASE("statistics refuse what has no answer") {
  CHECK_THROWS_AS(median(Values{}), ConfigError);
  CHECK_THROWS_AS(median(Values{1, std::nan("")}), ConfigError);
  CHECK_THROWS_AS(quantile(Values{1}, 1.01), ConfigError);
  CHECK_THROWS_AS(quantile(Values{1}, std::nan("")), ConfigError);
  CHECK_THROWS_AS(bootstrap_median(Values{}), ConfigError);
  CHECK_THROWS_AS(bootstrap_median(Values{1}, 1.0), ConfigError);
  CHECK_THROWS_AS(bootstrap_median(Values{1}, 0.95, 0), ConfigError);
  CHECK_THROWS_AS(paired_ratios(Values{1, 2}, Values{1}), ConfigError);
  CHECK_THROWS_AS(paired_ratios(Values{0}, Values{1}), ConfigError);
}

TEST_CASE("paired ratios cancel what both arms share") {
  // The machine halves its speed in the second round: the ratio does not see it.
  CHECK(paired_ratios(Values{100, 50}, Values{150, 75}) == Values{1.5, 1.5});
}

TEST_CASE("SplitMix64 gives the published sequence") {
  SplitMix64 random(1234567);
  CHECK(random() == 6457827717110365317u);
  CHECK(random() == 3203168211198807973u);
  CHECK(random() == 9817491932198370423u);
  SplitMix64 die(1);
  std::array<int, 6> seen{};
  for (int i = 0; i < 6000; ++i) ++seen[die.below(6)];
  for (const int n : seen) CHECK(std::abs(n - 1000) < 150);
}

TEST_CASE("the bootstrap interval is deterministic, holds the median and narrows with more rounds") {
  const Values few{1.10, 1.30, 1.20, 1.25, 1.15};
  const Interval a = bootstrap_median(few), b = bootstrap_median(few);
  CHECK(a == b);
  CHECK(a.contains(1.20));
  CHECK(a.low >= 1.10);
  CHECK(a.high <= 1.30);
  Values many;
  for (int i = 0; i < 20; ++i) many.insert(many.end(), few.begin(), few.end());
  const Interval narrow = bootstrap_median(many);
  CHECK(narrow.high - narrow.low < a.high - a.low);
  CHECK(bootstrap_median(Values{2, 2, 2}) == Interval{2, 2});
  // One outlier does not move the middle of eight rounds to it.
  CHECK(bootstrap_median(Values{1, 1, 1, 1, 1, 1, 1, 9}).high == 1);
}

TEST_CASE("the bootstrap interval covers the true median about as often as it says") {
  SplitMix64 random(7);
  int covered = 0;
  constexpr int kTrials = 400;
  for (int trial = 0; trial < kTrials; ++trial) {
    Values draw(9);
    for (double& v : draw) v = static_cast<double>(random() >> 11) * 0x1p-53;  // uniform: the median is 0.5
    covered += bootstrap_median(draw, 0.95, 400, random()).contains(0.5);
  }
  CHECK(covered > 0.90 * kTrials);
  CHECK(covered < 0.995 * kTrials);
}

}  // namespace
}  // namespace saturate::audit
