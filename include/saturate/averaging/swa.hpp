// SPDX-License-Identifier: Apache-2.0
// Stochastic weight averaging: the plain mean of the weights along the last part of a run.
//
//   st::Trainer trainer(net, optimizer, loss, st::Swa({.start = 4000, .every = 100}));
#pragma once

#include "saturate/averaging/averaged_weights.hpp"

#include <cstdint>
#include <optional>

namespace saturate {

struct SwaOptions {
  int64_t start = 1;  ///< the optimizer step whose weights are the first to be averaged, counted from 1
  int64_t every = 1;  ///< steps from one update to the next
  AverageBuffers buffers = AverageBuffers::copy;
  bool evaluate = true;  ///< Trainer::evaluate uses the averages, once there are some
  /// Keep the count on the device even where the host could know it. Default: on a GPU only.
  std::optional<bool> count_on_device = {};
};

/// The equal average (Izmailov et al., "Averaging weights leads to wider optima and better generalization", 2018), as
/// Python's AveragedModel has it. Statistics of BatchNorm do not follow from averaged weights: update_batch_norm()
/// computes them anew.
class Swa : public AveragedWeights {
 public:
  /// For a Trainer, which attaches it to its model. @throws ConfigError start or every is below 1.
  explicit Swa(const SwaOptions& options = {});
  /// For a loop of your own, on the device where the module is now. @throws ConfigError as above, and as attach().
  explicit Swa(torch::nn::Module& module, const SwaOptions& options = {});
};
static_assert(AveragingPolicy<Swa>);

}  // namespace saturate
