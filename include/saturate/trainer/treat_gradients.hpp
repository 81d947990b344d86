// SPDX-License-Identifier: Apache-2.0
// What policies do to a window's gradients before the update, and what a guard keeps of the window. Used by step.hpp.
#pragma once

#include "saturate/clip/clip_context.hpp"
#include "saturate/for_each_tensor.hpp"
#include "saturate/observe/window_replay.hpp"
#include "saturate/trainer/step_policies.hpp"
#include "saturate/trainer/step_result.hpp"
#include "saturate/trainer/step_support.hpp"

#include <ATen/core/Tensor.h>

namespace saturate::detail {

/// Unscales, clips and looks at the gradients. @return found_inf of the scaler, over all ranks.
template <class Policies>
at::Tensor treat_gradients(Policies& policies, GradientList& list, StepResult& result) {
  at::Tensor found_inf;
  if constexpr (Policies::scales_gradients) {
    found_inf = policies.precision().unscale(list.gradients);
    if (found_inf.defined()) policies.distributed().agree(found_inf);
    refuse(result.refused, found_inf);
  }
  if constexpr (Policies::clips) {
    const ClipContext context{list.parameters, list.groups, result.loss_sum, result.count};
    const ClipResult clipped = clip(policies.clipping(), list.gradients, context);
    result.grad_norm = clipped.norm;
    refuse(result.refused, clipped.refused);
  }
  if constexpr (Policies::guards) {
    if (!result.grad_norm.defined()) result.grad_norm = grad_norm(list.gradients);
    refuse(result.refused, policies.guard().check(result.loss_sum, result.grad_norm, found_inf));
  }
  return found_inf;
}

template <class MicroBatches>
WindowReplay replay_with_tensors(MicroBatches& micro_batches) {
  WindowReplay replay;
  for (auto& micro : micro_batches) {
    visit_tensors(micro.inputs, [&](at::Tensor& tensor) { replay.inputs.push_back(tensor); });
    visit_tensors(micro.target, [&](at::Tensor& tensor) { replay.targets.push_back(tensor); });
  }
  return replay;
}

}  // namespace saturate::detail
