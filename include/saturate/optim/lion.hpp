// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "saturate/optim/cohort_optimizer.hpp"

#include <vector>

namespace saturate::optim {

/// The paper's defaults. A good learning rate is 3 to 10 times smaller than AdamW's, with a weight decay as much
/// larger.
struct LionOptions {
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;  ///< decoupled
  bool maximize = false;
};

/// Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, algorithm 2): steps of one size, one
/// moment.
///
///   c = beta1 m + (1 - beta1) g, p -= lr * (sign(c) + weight_decay p), m = beta2 m + (1 - beta2) g
///
/// On the CPU, in float32 and float64: one loop; otherwise at::_foreach_*.
class Lion final : public CohortOptimizer {
 public:
  /// @throws ConfigError an option out of range: lr, weight_decay >= 0, betas in [0, 1); see CohortOptimizer.
  explicit Lion(std::vector<at::Tensor> params, const LionOptions& options = {});
  explicit Lion(std::vector<ParamGroup> groups, const LionOptions& options = {});

 private:
  void apply(Cohort& cohort, at::TensorList grads, const KernelArgs& args) override;
};

}  // namespace saturate::optim
