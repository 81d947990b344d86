// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "saturate/optim/cohort_optimizer.hpp"

#include <vector>

namespace saturate::optim {

/// Defaults are LibTorch's.
struct RMSpropOptions {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false;  ///< divides by the deviation from the mean gradient (Graves, 2013)
  bool maximize = false;
};

/// Divides by a running root mean square of the gradient (Tieleman and Hinton, "Lecture 6.5 - RMSProp", 2012).
///
///   v = alpha v + (1 - alpha) g^2, p -= lr * g / (sqrt(v) + eps)
///
/// The variance of the centered form, v - mean^2, is kept from falling below 0 by rounding.
/// On the CPU, in float32 and float64: one loop; otherwise at::_foreach_*.
class RMSprop final : public CohortOptimizer {
 public:
  /// @throws ConfigError an option out of range: alpha in [0, 1), the others >= 0; see CohortOptimizer.
  explicit RMSprop(std::vector<at::Tensor> params, const RMSpropOptions& options = {});
  explicit RMSprop(std::vector<ParamGroup> groups, const RMSpropOptions& options = {});

 private:
  void apply(Cohort& cohort, at::TensorList grads, const KernelArgs& args) override;
};

}  // namespace saturate::optim
