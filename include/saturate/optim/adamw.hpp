// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "saturate/optim/adam.hpp"

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

/// Adam with decoupled weight decay (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019):
/// p *= 1 - lr * weight_decay, then Adam's step without decay.
class AdamW final : public Adam {
 public:
  /// @throws ConfigError as Adam.
  explicit AdamW(std::vector<at::Tensor> params, const AdamWOptions& options = {});
  explicit AdamW(std::vector<ParamGroup> groups, const AdamWOptions& options = {});
};

}  // namespace saturate::optim
