// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "saturate/optim/cohort_optimizer.hpp"

#include <vector>

namespace saturate::optim {

struct LARSOptions {
  double lr = 1e-1;
  double momentum = 0.9;
  double weight_decay = 1e-4;
  double trust_coefficient = 1e-3;  ///< the paper's eta
  double eps = 0;                   ///< added to the denominator of the local rate
  /// The local rate for groups without weight decay too, as in the paper; false leaves those (biases, norms) to SGD.
  bool adapt_undecayed = true;
  bool maximize = false;
};

/// SGD with momentum and a learning rate per tensor, for large batches (You, Gitman and Ginsburg, "Large Batch Training
/// of Convolutional Networks", 2017, algorithm 1).
///
///   local = trust_coefficient * |p| / (|g| + weight_decay |p| + eps)   (1 where |p| or |g| is 0)
///   m = momentum m + lr * local * (g + weight_decay p), p -= m
///
/// Norms are summed in float32 or wider. On the CPU, in float32 and float64: two loops; otherwise at::_foreach_*.
class LARS final : public CohortOptimizer {
 public:
  /// @throws ConfigError a negative option; see CohortOptimizer.
  explicit LARS(std::vector<at::Tensor> params, const LARSOptions& options = {});
  explicit LARS(std::vector<ParamGroup> groups, const LARSOptions& options = {});

 private:
  void apply(Cohort& cohort, at::TensorList grads, const KernelArgs& args) override;
};

}  // namespace saturate::optim
