// SPDX-License-Identifier: Apache-2.0
#include "saturate/observe/timing.hpp"

#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <limits>

#include "saturate/error.hpp"

using Catch::Approx;
using saturate::Quantiles;

TEST_CASE("Quantiles: exact values equal numpy.quantile's") {
  Quantiles quantiles;
  for (const double value : {9.0, 1.0, 7.0, 3.0}) quantiles.add(value);
  CHECK(quantiles.p50() == 5.0);                  // between 3 and 7
  CHECK(quantiles.p95() == Approx(8.7));          // numpy.quantile([9, 1, 7, 3], 0.95)
  CHECK(quantiles.quantile(0.1) == Approx(1.6));  // numpy.quantile([9, 1, 7, 3], 0.1)
  CHECK(quantiles.quantile(0) == 1.0);
  CHECK(quantiles.quantile(1) == 9.0);
  CHECK(quantiles.min() == 1.0);
  CHECK(quantiles.max() == 9.0);
  CHECK(quantiles.mean() == 5.0);
  CHECK(quantiles.count() == 4);
  CHECK(quantiles.exact());
}

TEST_CASE("Quantiles: one value is every quantile") {
  Quantiles quantiles;
  quantiles.add(-2.5);
  CHECK(quantiles.p50() == -2.5);
  CHECK(quantiles.p95() == -2.5);
  CHECK(quantiles.max() == -2.5);  // not the 0 that it started from
}

TEST_CASE("Quantiles: beyond the capacity a uniform sample stands for the values, extremes stay exact") {
  Quantiles quantiles(1000);
  for (int i = 0; i < 100000; ++i) quantiles.add(i);
  CHECK_FALSE(quantiles.exact());
  CHECK(quantiles.count() == 100000);
  CHECK(quantiles.max() == 99999);
  CHECK(quantiles.min() == 0);
  CHECK(quantiles.mean() == Approx(49999.5));
  // Keeping only the first or the last thousand would be off by half the range; 5 sigma of a sample of 1000 is 8 %.
  CHECK(quantiles.p50() == Approx(50000).margin(8000));
  CHECK(quantiles.p95() == Approx(95000).margin(3500));
  quantiles.clear();
  CHECK(quantiles.count() == 0);
  CHECK_THROWS_AS(quantiles.p50(), saturate::StateError);
}

TEST_CASE("Quantiles: what cannot work is refused and changes nothing") {
  CHECK_THROWS_AS(Quantiles(0), saturate::ConfigError);
  Quantiles quantiles;
  CHECK_THROWS_AS(quantiles.mean(), saturate::StateError);
  CHECK_THROWS_AS(quantiles.add(std::numeric_limits<double>::quiet_NaN()), saturate::ConfigError);
  CHECK_THROWS_AS(quantiles.add(std::numeric_limits<double>::infinity()), saturate::ConfigError);
  CHECK(quantiles.count() == 0);
  quantiles.add(1);
  CHECK_THROWS_AS(quantiles.quantile(95), saturate::ConfigError);
  CHECK_THROWS_AS(quantiles.quantile(-0.1), saturate::ConfigError);
}

TEST_CASE("Stopwatch: laps add up to no more than the whole, and never run backwards") {
  saturate::Stopwatch whole;
  saturate::Stopwatch lap;
  double laps = 0;
  for (int i = 0; i < 100; ++i) {
    const double seconds = lap.restart();
    CHECK(seconds >= 0);
    laps += seconds;
  }
  CHECK(laps <= whole.seconds());
}
