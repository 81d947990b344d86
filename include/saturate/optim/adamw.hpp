// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "saturate/optim/fused_optimizer.hpp"

#include <vector>

namespace saturate::optim {

/// Defaults are LibTorch's.
struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool amsgrad = false;
  bool maximize = false;
};

/// Adam with decoupled weight decay (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019) on
/// LibTorch's fused kernel: one pass over parameters, gradients and moments.
class AdamW final : public FusedOptimizer {
 public:
  /// @throws ConfigError lr, eps or weight_decay negative; a beta outside [0, 1); see FusedOptimizer.
  explicit AdamW(std::vector<at::Tensor> params, const AdamWOptions& options = {});
  explicit AdamW(std::vector<ParamGroup> groups, const AdamWOptions& options = {});

 private:
  void apply(Cohort& cohort, at::TensorList grads, const KernelArgs& args) override;
  std::map<std::string, double> options() const override;

  AdamWOptions options_;
};

}  // namespace saturate::optim
