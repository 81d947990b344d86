// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "saturate/optim/cohort_optimizer.hpp"

#include <vector>

namespace saturate::optim {

/// `lr` has no useful default, as in LibTorch.
struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool maximize = false;
};

/// Stochastic gradient descent with momentum (Sutskever et al., "On the importance of initialization and momentum in
/// deep learning", 2013). On the CPU, in float32 and float64: one loop; on CUDA LibTorch's fused kernel; in half
/// precision on the CPU, where that kernel is wrong, at::_foreach_*.
class SGD final : public CohortOptimizer {
 public:
  /// @throws ConfigError a negative option; nesterov without momentum or with dampening; see CohortOptimizer.
  explicit SGD(std::vector<at::Tensor> params, const SGDOptions& options = {});
  explicit SGD(std::vector<ParamGroup> groups, const SGDOptions& options = {});

 private:
  void apply(Cohort& cohort, at::TensorList grads, const KernelArgs& args) override;
};

}  // namespace saturate::optim
