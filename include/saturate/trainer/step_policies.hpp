// SPDX-License-Identifier: Apache-2.0
// How a step asks its policies for what they may have besides their contract. Used by step.hpp.
#pragma once

#include "saturate/clip/clip_context.hpp"
#include "saturate/optim/optimizer.hpp"
#include "saturate/policy_defaults.hpp"
#include "saturate/trainer/step_counter.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace saturate::detail {

template <class Clipping>
ClipResult clip(Clipping& clipping, std::vector<at::Tensor>& gradients, const ClipContext& context) {
  if constexpr (requires { clipping.clip(gradients, context); }) {
    return clipping.clip(gradients, context);
  } else {
    return clipping.clip(gradients);
  }
}

/// What a schedule gives beside the factor of the step; a schedule whose factors have changed since `revision` makes
/// the counter forget those that were filled ahead.
template <class Schedule>
optim::StepArgs step_args(Schedule& schedule, StepCounter& counter, int64_t& revision) {
  optim::StepArgs args;
  if constexpr (requires { schedule.momentum(int64_t{}); }) args.momentum = schedule.momentum(counter.known());
  if constexpr (requires { schedule.group_factors(int64_t{}); }) {
    args.group_lr_factors = schedule.group_factors(counter.known());
  }
  if constexpr (requires { schedule.revision(); }) {
    if (schedule.revision() != revision) counter.forget_factors();
    revision = schedule.revision();
  }
  return args;
}

/// Whether any rank ran out of memory, where ranks can agree on it.
template <class Distributed>
bool any_out_of_memory(Distributed& distributed, bool here) {
  if constexpr (requires { distributed.any_out_of_memory(here); }) {
    return distributed.any_out_of_memory(here);
  } else {
    return here;
  }
}

/// Runs forward and backward of a window; a distributed policy may give its errors their names.
template <class Distributed, class Window>
void run_window(Distributed& distributed, Window window) {
  if constexpr (requires { distributed.run(window); }) {
    distributed.run(window);
  } else {
    window();
  }
}

/// Spans forward and backward of a window.
template <class Policy>
auto window_scope(Policy& policy) {
  if constexpr (requires { policy.window_scope(); }) {
    return policy.window_scope();
  } else {
    return NothingScope();
  }
}

}  // namespace saturate::detail
