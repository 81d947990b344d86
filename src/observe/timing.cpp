// SPDX-License-Identifier: Apache-2.0
#include "saturate/observe/timing.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "saturate/error.hpp"

namespace saturate {
namespace {

// splitmix64: a whole generator in one word, and the same on every platform.
uint64_t next_random(uint64_t& state) {
  uint64_t z = (state += 0x9E3779B97F4A7C15);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

}  // namespace

Quantiles::Quantiles(size_t capacity) : capacity_(capacity) {
  if (capacity == 0) throw ConfigError("Quantiles: a capacity of 0 keeps no value; give at least 1.");
}

void Quantiles::add(double value) {
  if (!std::isfinite(value)) {
    throw ConfigError("Quantiles: " + std::to_string(value) + " has no place in an order; add finite values only.");
  }
  min_ = count_ == 0 ? value : std::min(min_, value);
  max_ = count_ == 0 ? value : std::max(max_, value);
  sum_ += value;
  ++count_;
  if (kept_.size() < capacity_) {
    kept_.push_back(value);
    return;
  }
  const uint64_t slot = next_random(random_) % static_cast<uint64_t>(count_);
  if (slot < capacity_) kept_[slot] = value;
}

double Quantiles::quantile(double q) const {
  if (!(q >= 0 && q <= 1)) {
    throw ConfigError("Quantiles: the share " + std::to_string(q) +
                      " is not within 0 and 1 (0.95 is the 95th percentile).");
  }
  require_values();
  const double position = q * static_cast<double>(kept_.size() - 1);
  const auto below = static_cast<size_t>(position);
  std::vector<double> values = kept_;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(below);
  std::nth_element(values.begin(), at, values.end());
  if (below + 1 == values.size()) return *at;
  const double above = *std::min_element(at + 1, values.end());
  return *at + (position - static_cast<double>(below)) * (above - *at);
}

double Quantiles::min() const {
  require_values();
  return min_;
}

double Quantiles::max() const {
  require_values();
  return max_;
}

double Quantiles::mean() const {
  require_values();
  return sum_ / static_cast<double>(count_);
}

void Quantiles::require_values() const {
  if (count_ == 0) throw StateError("Quantiles: no value was added yet; call add() first.");
}

}  // namespace saturate
