// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "saturate/optim/cohort_optimizer.hpp"

#include <vector>

namespace saturate::optim {

/// Defaults are LibTorch's.
struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;  ///< added to the gradient, unless decoupled
  bool amsgrad = false;     ///< divides by the largest second moment so far (Reddi et al., 2018)
  bool maximize = false;
  bool decoupled_weight_decay = false;  ///< as AdamW
};

/// Adam (Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015) in one pass over parameters, gradients and
/// moments: LibTorch's fused kernel, and for small tensors on the CPU one loop over all of them.
///
///   m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2,
///   p -= lr * m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)
class Adam : public CohortOptimizer {
 public:
  /// @throws ConfigError an option out of range: lr, eps, weight_decay >= 0, betas in [0, 1); see CohortOptimizer.
  explicit Adam(std::vector<at::Tensor> params, const AdamOptions& options = {});
  explicit Adam(std::vector<ParamGroup> groups, const AdamOptions& options = {});

 protected:
  Adam(Method method, const std::vector<ParamGroup>& groups) : CohortOptimizer(std::move(method), groups) {}
  /// Every option but "decoupled_weight_decay", without which decay is decoupled.
  static Method method(std::string type, const AdamOptions& options);

 private:
  void apply(Cohort& cohort, at::TensorList grads, const KernelArgs& args) override;
};

}  // namespace saturate::optim
