// SPDX-License-Identifier: Apache-2.0
// Samples drawn at random by weight: rare classes more often than they occur.
//
//   auto balanced = std::make_shared<st::data::WeightedSampler>(weights);  // a weight per sample
#pragma once

#include "saturate/data/sampler.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace saturate::data {

struct WeightedOptions {
  int64_t num_samples = 0;  ///< of an epoch; 0: as many as there are weights
  bool replacement = true;  ///< a sample may come several times; without, at most once
};

/// Sample i is drawn with a probability that is proportional to weights[i]; 0: never. With replacement each draw is for
/// itself, in constant time (Walker's alias method, built once). Without, the draws follow one another, each by the
/// weights of what is left (Efraimidis and Spirakis: the smallest exponential keys).
class WeightedSampler final : public Sampler {
 public:
  /// @throws ConfigError when a weight is negative or not finite, none is positive, num_samples is negative, or without
  /// replacement fewer weights are positive than samples are wanted.
  explicit WeightedSampler(std::vector<double> weights, WeightedOptions options = {});

  int64_t length(int64_t size) const override;
  /// @throws ConfigError unless `size` is the number of weights.
  std::vector<int64_t> order(int64_t size, uint64_t seed, int64_t epoch) const override;
  /// Holds a digest of the weights.
  std::string name() const override;

 private:
  // Of a column of the alias table: it is drawn itself with `own`, else `alias` is.
  struct Column {
    double own;
    int64_t alias;
  };

  void build_table();
  void check_size(int64_t size) const;
  std::vector<int64_t> with_replacement(uint64_t seed, int64_t epoch) const;
  std::vector<int64_t> without_replacement(uint64_t seed, int64_t epoch) const;

  std::vector<double> weights_;
  WeightedOptions options_;
  uint64_t digest_ = 0;        // of the weights
  std::vector<Column> table_;  // with replacement
};

}  // namespace saturate::data
