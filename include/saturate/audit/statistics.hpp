// SPDX-License-Identifier: Apache-2.0
// The statistics of the audit's verdicts: medians, quantiles, paired ratios, and a bootstrap confidence interval that
// gives the same numbers on every machine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace saturate::audit {

struct Interval {
  double low = 0;
  double high = 0;
  bool contains(double value) const { return low <= value && value <= high; }
  bool operator==(const Interval&) const = default;
};

/// The middle value, or the mean of the two in the middle.
/// @throws ConfigError for no values, or a NaN among them.
double median(std::span<const double> values);

/// The value below which a share `q` of the values lies, interpolated linearly between neighbours (numpy's default).
/// @throws ConfigError for no values, a NaN among them, or `q` outside [0, 1].
double quantile(std::span<const double> values, double q);

/// candidate[i] / baseline[i]: what the machine did at the time of round i cancels out.
/// @throws ConfigError when the two differ in length or a baseline value is not above zero.
std::vector<double> paired_ratios(std::span<const double> baseline, std::span<const double> candidate);

/// Percentile bootstrap: the interval that holds the middle `confidence` of the medians of `resamples` samples drawn
/// from `values` with replacement. With fewer than six values it is the whole range at a confidence of 0.95, and covers
/// less than it says (five: 0.94, three: 0.75).
/// @throws ConfigError for no values, a NaN, `confidence` outside (0, 1) or `resamples` below 1.
Interval bootstrap_median(std::span<const double> values, double confidence = 0.95, int64_t resamples = 4000,
                          uint64_t seed = 0x5a7u);

/// SplitMix64 (Steele, Lea and Flood, 2014): 64 random bits a call; unlike the standard library's distributions, the
/// draws are the same everywhere.
class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t seed) : state_(seed) {}
  uint64_t operator()();
  /// Uniform in [0, bound). bound is above zero.
  uint64_t below(uint64_t bound);

 private:
  uint64_t state_;
};

}  // namespace saturate::audit
