// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "saturate/trainer/count.hpp"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

namespace saturate {

/// What a clipping policy may look at beside the gradients. The lists are parallel to the gradients.
struct ClipContext {
  const std::vector<at::Tensor>& parameters;
  const std::vector<std::size_t>& groups;  ///< index of each one's parameter group
  at::Tensor loss_sum;                     ///< 0-dim, summed over the window's targets
  Count count;                             ///< targets of the window

  /// 0-dim float64: mean loss over the window's targets.
  at::Tensor mean_loss() const;
};

struct ClipResult {
  at::Tensor norm;     ///< 0-dim float64: global norm before clipping; undefined when nothing was measured
  at::Tensor refused;  ///< 0-dim float32, 1: the step must not be taken; undefined: it always may
};

/// Global `norm_type`-norm over all of `gradients`, of any dtypes and devices: 0-dim float64 on the first one's device.
/// Computed in float64, so that neither four float16 values of 40000 nor float32 values of 1e20 overflow. No gradients
/// at all have norm 0.
at::Tensor grad_norm(const std::vector<at::Tensor>& gradients, double norm_type = 2.0);

}  // namespace saturate
