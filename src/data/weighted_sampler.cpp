// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/weighted_sampler.hpp"

#include "saturate/data/sample_at.hpp"
#include "saturate/error.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <sstream>
#include <utility>

namespace saturate::data {
namespace {

/// How many are positive.
int64_t check_weights(const std::vector<double>& weights) {
  int64_t positive = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!std::isfinite(weights[i]) || weights[i] < 0) {
      throw ConfigError("WeightedSampler: weight " + std::to_string(i) + " is " + std::to_string(weights[i]) +
                        "; weights are finite, 0 or more");
    }
    positive += weights[i] > 0;
  }
  if (positive == 0) {
    throw ConfigError("WeightedSampler: none of the " + std::to_string(weights.size()) +
                      " weights is positive, so nothing can be drawn");
  }
  return positive;
}

// A stream apart from the ones that shuffle with the same seed.
SampleRandom random_of(uint64_t seed, int64_t epoch) {
  return SampleRandom(SampleRandom(seed, 0x77656967687473).next(), static_cast<uint64_t>(epoch));
}

}  // namespace

WeightedSampler::WeightedSampler(std::vector<double> weights, WeightedOptions options)
    : weights_(std::move(weights)), options_(options) {
  const int64_t positive = check_weights(weights_);
  if (options_.num_samples < 0) {
    throw ConfigError("WeightedOptions: num_samples is " + std::to_string(options_.num_samples) +
                      "; 0 takes as many as there are weights");
  }
  if (options_.num_samples == 0) options_.num_samples = static_cast<int64_t>(weights_.size());
  for (const double weight : weights_) digest_ = SampleRandom(digest_, std::bit_cast<uint64_t>(weight)).next();
  if (options_.replacement) {
    build_table();
  } else if (positive < options_.num_samples) {
    throw ConfigError("WeightedSampler: " + std::to_string(options_.num_samples) +
                      " samples are wanted without replacement, and only " + std::to_string(positive) +
                      " weights are positive; lower num_samples or allow replacement");
  }
}

// Vose's way: a column with less than its share is filled up by one that has more.
void WeightedSampler::build_table() {
  const auto count = static_cast<double>(weights_.size());
  const double largest = *std::max_element(weights_.begin(), weights_.end());
  double sum = 0;
  for (const double weight : weights_) sum += weight / largest;
  std::vector<double> height;
  std::vector<int64_t> low, high;
  for (const double weight : weights_) {
    const auto column = static_cast<int64_t>(height.size());
    height.push_back(weight / largest * count / sum);
    (height.back() < 1 ? low : high).push_back(column);
    // What rounding leaves over at the end is full; a weight of 0 then still needs a column that is drawn.
    table_.push_back({1, column});
  }
  const auto at = [&](int64_t column) -> double& { return height[static_cast<std::size_t>(column)]; };
  while (!low.empty() && !high.empty()) {
    const int64_t small = low.back(), large = high.back();
    low.pop_back();
    table_[static_cast<std::size_t>(small)] = {at(small), large};
    at(large) -= 1 - at(small);
    if (at(large) >= 1) continue;
    high.pop_back();
    low.push_back(large);
  }
  // What rounding leaves over is drawn itself, unless its weight is 0.
  const auto drawn = std::max_element(weights_.begin(), weights_.end()) - weights_.begin();
  for (const int64_t column : low) {
    if (weights_[static_cast<std::size_t>(column)] == 0) table_[static_cast<std::size_t>(column)] = {0, drawn};
  }
}

void WeightedSampler::check_size(int64_t size) const {
  if (size == static_cast<int64_t>(weights_.size())) return;
  throw ConfigError("WeightedSampler: there are " + std::to_string(weights_.size()) + " weights, and the source has " +
                    std::to_string(size) + " samples; each sample has a weight");
}

int64_t WeightedSampler::length(int64_t size) const {
  check_size(size);
  return options_.num_samples;
}

std::vector<int64_t> WeightedSampler::order(int64_t size, uint64_t seed, int64_t epoch) const {
  check_size(size);
  if (epoch < 0) throw ConfigError("WeightedSampler: epoch is " + std::to_string(epoch) + "; epochs count from 0");
  return options_.replacement ? with_replacement(seed, epoch) : without_replacement(seed, epoch);
}

std::vector<int64_t> WeightedSampler::with_replacement(uint64_t seed, int64_t epoch) const {
  SampleRandom random = random_of(seed, epoch);
  std::vector<int64_t> order(static_cast<std::size_t>(options_.num_samples));
  for (int64_t& index : order) {
    const auto column = static_cast<int64_t>(random.below(table_.size()));
    const Column& drawn = table_[static_cast<std::size_t>(column)];
    index = random.uniform() < drawn.own ? column : drawn.alias;
  }
  return order;
}

// The keys' logarithms: -log(u) / weight leaves the range of double for weights far apart.
std::vector<int64_t> WeightedSampler::without_replacement(uint64_t seed, int64_t epoch) const {
  SampleRandom random = random_of(seed, epoch);
  std::vector<std::pair<double, int64_t>> keys;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    const double u = 1 - random.uniform();  // in (0, 1]; drawn for weights of 0 too, so that they shift nothing
    if (weights_[i] > 0) keys.emplace_back(std::log(-std::log(u)) - std::log(weights_[i]), static_cast<int64_t>(i));
  }
  const auto wanted = keys.begin() + options_.num_samples;
  std::nth_element(keys.begin(), wanted == keys.end() ? wanted - 1 : wanted, keys.end());
  std::sort(keys.begin(), wanted);
  std::vector<int64_t> order;
  order.reserve(static_cast<std::size_t>(options_.num_samples));
  for (auto key = keys.begin(); key != wanted; ++key) order.push_back(key->second);
  return order;
}

std::string WeightedSampler::name() const {
  std::ostringstream text;
  text << "weighted (" << weights_.size() << " weights " << std::hex << digest_ << std::dec << ", "
       << options_.num_samples << " samples, " << (options_.replacement ? "with" : "without") << " replacement)";
  return text.str();
}

}  // namespace saturate::data
