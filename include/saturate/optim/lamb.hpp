// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "saturate/optim/cohort_optimizer.hpp"

#include <vector>

namespace saturate::optim {

struct LAMBOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-6;
  double weight_decay = 1e-2;  ///< decoupled, inside the trust ratio
  /// The trust ratio for groups without weight decay too, as in the paper; false leaves those (biases, norms) to Adam.
  bool adapt_undecayed = true;
  bool maximize = false;
};

/// Adam with a step per tensor in proportion to the tensor's norm, for large batches (You et al., "Large Batch
/// Optimization for Deep Learning: Training BERT in 76 minutes", 2020, algorithm 2, with phi(x) = x).
///
///   u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay p
///   p -= lr * |p| / |u| * u          (the ratio is 1 where |p| or |u| is 0)
///
/// Norms are summed in float32 or wider. On the CPU, in float32 and float64: two loops; otherwise at::_foreach_*.
class LAMB final : public CohortOptimizer {
 public:
  /// @throws ConfigError an option out of range: lr, eps, weight_decay >= 0, betas in [0, 1); see CohortOptimizer.
  explicit LAMB(std::vector<at::Tensor> params, const LAMBOptions& options = {});
  explicit LAMB(std::vector<ParamGroup> groups, const LAMBOptions& options = {});

 private:
  void apply(Cohort& cohort, at::TensorList grads, const KernelArgs& args) override;
};

}  // namespace saturate::optim
