// SPDX-License-Identifier: Apache-2.0
#include "saturate/audit/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "saturate/error.hpp"

namespace saturate::audit {
namespace {

void check_values(std::span<const double> values, const char* what) {
  if (values.empty()) throw ConfigError(std::string(what) + ": there are no values; measure at least one round");
  if (std::any_of(values.begin(), values.end(), [](double v) { return std::isnan(v); })) {
    throw ConfigError(std::string(what) + ": a value is NaN; leave it out or fix the measurement");
  }
}

double sorted_quantile(const std::vector<double>& sorted, double q) {
  const double place = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const double part = place - static_cast<double>(below);
  // Without the test an infinite neighbour of weight 0 would make a NaN.
  return part == 0 ? sorted[below] : sorted[below] + part * (sorted[below + 1] - sorted[below]);
}

}  // namespace

double quantile(std::span<const double> values, double q) {
  check_values(values, "quantile");
  if (!(q >= 0 && q <= 1)) throw ConfigError("quantile: q is " + std::to_string(q) + "; it lies between 0 and 1");
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted_quantile(sorted, q);
}

double median(std::span<const double> values) { return quantile(values, 0.5); }

std::vector<double> paired_ratios(std::span<const double> baseline, std::span<const double> candidate) {
  if (baseline.size() != candidate.size()) {
    throw ConfigError("paired_ratios: " + std::to_string(baseline.size()) + " baseline values against " +
                      std::to_string(candidate.size()) + " of the candidate; each round gives one of both");
  }
  std::vector<double> ratios(baseline.size());
  for (std::size_t i = 0; i < ratios.size(); ++i) {
    if (!(baseline[i] > 0)) {
      throw ConfigError("paired_ratios: baseline value " + std::to_string(i) + " is " + std::to_string(baseline[i]) +
                        "; it must be above 0");
    }
    ratios[i] = candidate[i] / baseline[i];
  }
  return ratios;
}

Interval bootstrap_median(std::span<const double> values, double confidence, int64_t resamples, uint64_t seed) {
  check_values(values, "bootstrap_median");
  if (!(confidence > 0 && confidence < 1)) {
    throw ConfigError("bootstrap_median: confidence is " + std::to_string(confidence) + "; it lies between 0 and 1");
  }
  if (resamples < 1) {
    throw ConfigError("bootstrap_median: " + std::to_string(resamples) + " resamples; take at least 1");
  }
  SplitMix64 random(seed);
  std::vector<double> draw(values.size());
  std::vector<double> medians(static_cast<std::size_t>(resamples));
  for (double& m : medians) {
    for (double& value : draw) value = values[random.below(values.size())];
    std::sort(draw.begin(), draw.end());
    m = sorted_quantile(draw, 0.5);
  }
  std::sort(medians.begin(), medians.end());
  const double tail = (1 - confidence) / 2;
  return {sorted_quantile(medians, tail), sorted_quantile(medians, 1 - tail)};
}

uint64_t SplitMix64::operator()() {
  uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

uint64_t SplitMix64::below(uint64_t bound) {
  // Values in the last, incomplete multiple of `bound` are drawn again, so that none is favoured.
  const uint64_t limit = UINT64_MAX - UINT64_MAX % bound;
  uint64_t value = (*this)();
  while (value >= limit) value = (*this)();
  return value % bound;
}

}  // namespace saturate::audit
