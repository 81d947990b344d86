// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "saturate/averaging/averaged_weights.hpp"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

namespace saturate::detail {

/// Updates come after the steps first, first + every, ... (counted from 1); the n-th one, from 0, moves the averages by
/// weight(n) of the way to the weights.
struct AveragingRule {
  std::string type;
  int64_t first = 1;
  int64_t every = 1;
  std::optional<double> decay;  // none: the equal average
  bool warmup = false;
  AverageBuffers buffers = AverageBuffers::average;
  bool evaluate = true;
  std::optional<bool> count_on_device;

  bool due(int64_t steps) const { return steps >= first && (steps - first) % every == 0; }
  /// Updates made after so many steps.
  int64_t updates(int64_t steps) const { return steps < first ? 0 : (steps - first) / every + 1; }
  double weight(int64_t n) const {
    const auto t = static_cast<double>(n);
    if (n == 0) return 1;
    if (!decay) return 1 / (t + 1);
    return 1 - (warmup ? std::min(*decay, (1 + t) / (10 + t)) : *decay);
  }

  struct OnDevice {
    at::Tensor due;     // 0-dim bool
    at::Tensor weight;  // 0-dim float64; anything where not due
  };
  /// The same from 0-dim tensors: `taken` bool, `steps` int64 with this step counted.
  OnDevice on_device(const at::Tensor& taken, const at::Tensor& steps) const;
};

}  // namespace saturate::detail
