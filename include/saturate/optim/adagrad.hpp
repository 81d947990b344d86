// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "saturate/optim/cohort_optimizer.hpp"

#include <vector>

namespace saturate::optim {

/// Defaults are LibTorch's.
struct AdagradOptions {
  double lr = 1e-2;
  double lr_decay = 0;
  double weight_decay = 0;
  double initial_accumulator_value = 0;
  double eps = 1e-10;
  bool maximize = false;
};

/// Adaptive subgradients (Duchi, Hazan and Singer, 2011) on LibTorch's fused kernel, and for small tensors on the CPU
/// in one loop over all of them.
///
///   sum += g^2, p -= lr / (1 + (t - 1) lr_decay) * g / (sqrt(sum) + eps)
class Adagrad final : public CohortOptimizer {
 public:
  /// @throws ConfigError a negative option; see CohortOptimizer.
  explicit Adagrad(std::vector<at::Tensor> params, const AdagradOptions& options = {});
  explicit Adagrad(std::vector<ParamGroup> groups, const AdagradOptions& options = {});

 private:
  void apply(Cohort& cohort, at::TensorList grads, const KernelArgs& args) override;
};

}  // namespace saturate::optim
