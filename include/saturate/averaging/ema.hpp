// SPDX-License-Identifier: Apache-2.0
// The exponential moving average of the weights:
//
//   st::Trainer trainer(net, optimizer, loss, st::Ema({.decay = 0.999}));   // evaluates with the averages
#pragma once

#include "saturate/averaging/averaged_weights.hpp"

#include <cstdint>
#include <optional>

namespace saturate {

struct EmaOptions {
  double decay = 0.999;
  bool warmup = false;  ///< decay grows as (1 + t) / (10 + t) with the updates t so far, up to `decay`
  int64_t every = 1;    ///< optimizer steps from one update to the next
  AverageBuffers buffers = AverageBuffers::average;
  bool evaluate = true;  ///< Trainer::evaluate uses the averages
  /// Keep the count on the device even where the host could know it. Default: on a GPU only.
  std::optional<bool> count_on_device = {};
};

/// average = decay * average + (1 - decay) * weights after each `every`-th step; the first update takes the weights as
/// they are, as Python's AveragedModel with get_ema_multi_avg_fn does.
class Ema : public AveragedWeights {
 public:
  /// For a Trainer, which attaches it to its model. @throws ConfigError decay is not in [0, 1), or every is below 1.
  explicit Ema(const EmaOptions& options = {});
  /// For a loop of your own, on the device where the module is now. @throws ConfigError as above, and as attach().
  explicit Ema(torch::nn::Module& module, const EmaOptions& options = {});
};
static_assert(AveragingPolicy<Ema>);

}  // namespace saturate
