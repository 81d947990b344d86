// SPDX-License-Identifier: Apache-2.0
// The clipping axis.
#pragma once

#include "saturate/policy.hpp"

#include <ATen/core/Tensor.h>

#include <vector>

namespace saturate {

struct ClipResult {
  at::Tensor norm;     ///< 0-dim float64: global norm before clipping; undefined when nothing was measured
  at::Tensor refused;  ///< 0-dim float32, 1: the step must not be taken; undefined: it always may
};

/// Leaves gradients alone. The default.
struct NoClip {
  using axis = saturate::axis::clipping;
  ClipResult clip(std::vector<at::Tensor>&) const { return {}; }
};
static_assert(ClippingPolicy<NoClip>);

/// Scales all gradients by min(1, max_norm / (norm + 1e-6)), norm being the 2-norm over all of them (Pascanu et al.,
/// "On the difficulty of training recurrent neural networks", 2013), once a window. Works on the device; nothing is
/// read on the host. The norm is computed in float64 whatever the gradients' dtypes, so that neither four float16
/// values of 40000 nor float32 values of 1e20 overflow. A norm that is inf or NaN all the same refuses the step, which
/// then changes nothing. Works alone: call clip(gradients) after backward and before the optimizer's step.
struct ClipGradNorm {
  using axis = saturate::axis::clipping;

  double max_norm = 1.0;

  /// @param gradients defined tensors of any dtypes, scaled in place; none at all has norm 0.
  ClipResult clip(std::vector<at::Tensor>& gradients) const;
  /// @throws ConfigError max_norm is not above 0.
  void validate() const;
};
static_assert(ClippingPolicy<ClipGradNorm>);

}  // namespace saturate
