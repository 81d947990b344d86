// SPDX-License-Identifier: Apache-2.0
// The clipping axis: by norm and by value. Each works alone: call clip(gradients) after backward, before the step.
#pragma once

#include "saturate/clip/clip_context.hpp"
#include "saturate/policy.hpp"

#include <ATen/core/Tensor.h>

#include <vector>

namespace saturate {

/// Leaves gradients alone. The default.
struct NoClip {
  using axis = saturate::axis::clipping;
  ClipResult clip(std::vector<at::Tensor>&) const { return {}; }
};
static_assert(ClippingPolicy<NoClip>);

/// Scales all gradients by min(1, max_norm / (norm + 1e-6)), norm being the `norm_type`-norm over all of them (Pascanu
/// et al., "On the difficulty of training recurrent neural networks", 2013), once a window. Works on the device;
/// nothing is read on the host. A norm that is inf or NaN refuses the step, which then changes nothing.
struct ClipGradNorm {
  using axis = saturate::axis::clipping;

  double max_norm = 1.0;
  double norm_type = 2.0;  ///< above 0; infinity: the largest absolute value

  /// @param gradients defined tensors of any dtypes, scaled in place; none at all has norm 0.
  ClipResult clip(std::vector<at::Tensor>& gradients) const;
  /// @throws ConfigError max_norm or norm_type is not above 0.
  void validate() const;
};
static_assert(ClippingPolicy<ClipGradNorm>);

/// ClipGradNorm for each parameter group on its own.
struct ClipGradNormPerGroup {
  using axis = saturate::axis::clipping;

  std::vector<double> max_norms = {1.0};  ///< one for all groups, or one a group
  double norm_type = 2.0;

  /// `norm` of the result is that over all groups together.
  /// @throws ConfigError there are more groups than max_norms, and not one for all.
  ClipResult clip(std::vector<at::Tensor>& gradients, const ClipContext& context) const;
  /// @throws ConfigError max_norms is empty, or a value is not above 0.
  void validate() const;
};
static_assert(ClippingPolicy<ClipGradNormPerGroup>);

/// Limits every element to [-clip_value, clip_value]. inf and NaN are not hidden by that: they refuse the step.
struct ClipGradValue {
  using axis = saturate::axis::clipping;

  double clip_value = 1.0;

  /// `norm` of the result is the 2-norm before clipping.
  ClipResult clip(std::vector<at::Tensor>& gradients) const;
  /// @throws ConfigError clip_value is not above 0.
  void validate() const;
};
static_assert(ClippingPolicy<ClipGradValue>);

/// Adaptive gradient clipping (Brock et al., "High-Performance Large-Scale Image Recognition Without Normalization",
/// 2021): a unit (a row along dimension 0; a whole tensor of one dimension or none) whose gradient's norm is above
/// clip_factor * max(norm of its weights, eps) is scaled down to that.
struct AdaptiveGradClip {
  using axis = saturate::axis::clipping;

  double clip_factor = 0.01;
  double eps = 1e-3;

  ClipResult clip(std::vector<at::Tensor>& gradients, const ClipContext& context) const;
  /// @throws ConfigError clip_factor or eps is not above 0.
  void validate() const;
};
static_assert(ClippingPolicy<AdaptiveGradClip>);

}  // namespace saturate
