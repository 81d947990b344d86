// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "saturate/trainer/count.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace saturate {

/// What one window gave. Tensors stay on the device until somebody asks.
struct StepResult {
  at::Tensor loss_sum;   ///< 0-dim, summed over the window's targets
  Count count;           ///< targets of the window
  at::Tensor grad_norm;  ///< 0-dim, before clipping; undefined without clipping
  at::Tensor refused;    ///< 0-dim float32, 1: the step was not taken; undefined: it was
  int64_t samples = 0;

  /// Mean loss over the window's targets; waits for the device. NaN when there were none.
  double loss() const;
  /// Whether the optimizer's step was taken; waits for the device.
  bool taken() const;
};

}  // namespace saturate
