// SPDX-License-Identifier: Apache-2.0
// The axes of the Trainer, and the contract of a policy on each. Free of LibTorch, so that mistakes are found in a
// fraction of a second. docs/policies.md has the contracts in prose and how to write a policy; policy_pack.hpp checks
// them and sorts a pack into its axes.
#pragma once

#include <concepts>
#include <cstdint>

namespace c10 {
enum class DeviceType : std::int8_t;
}
namespace at {
class Tensor;
}
namespace torch::nn {
class Module;
}

namespace saturate {

/// A policy says which axis it is for: `using axis = saturate::axis::precision;`
namespace axis {
struct precision {};      ///< the dtype that forward runs in, and how gradients are scaled and unscaled
struct accumulation {};   ///< how many micro-batches make a window
struct recompute {};      ///< what forward keeps for backward
struct memory_format {};  ///< how parameters and inputs lie in memory
struct distributed {};    ///< what ranks do together
struct clipping {};       ///< what happens to gradients before the step
struct schedule {};       ///< the learning rate over steps
struct averaging {};      ///< averages of the weights
struct guard {};          ///< what watches for values that are not finite
struct capture {};        ///< how the step is launched
struct options {};        ///< TrainerOptions
}  // namespace axis

/// Types that a policy cannot work together with: `using excludes = saturate::Excludes<Other, Another>;`. A member
/// `static constexpr const char* excludes_because` documents why.
template <class... Others>
struct Excludes {};

// Contracts --------------------------------------------------------------------------------------------------------

/// `auto scope(c10::DeviceType device) const`: an object whose life spans forward and the loss (an AutocastScope).
/// Besides, where it has them: `auto window_scope() const` spans forward and backward of a whole window;
/// `void after_window()`; and a policy that scales gradients has root_scale(), unscale(gradients) and
/// after_step(found_inf, idle), see ScalesGradients.
template <class P>
concept PrecisionPolicy = requires(const P& policy, c10::DeviceType device) {
  policy.scope(device);
};

/// `int64_t micro_batches() const`: batches a window, 1 or more; the last window of an epoch may be shorter.
template <class P>
concept AccumulationPolicy = requires(const P& policy) {
  { policy.micro_batches() } -> std::convertible_to<std::int64_t>;
};

/// `auto scope() const`: an object whose life spans forward. Besides, where it has them: `auto window_scope() const`
/// spans forward and backward of a whole window, and `void after_backward()` is called when its backward is over; what
/// that throws leaves the window without effect.
template <class P>
concept RecomputePolicy = requires(const P& policy) {
  policy.scope();
};

/// `void convert(torch::nn::Module&) const` once, and `at::Tensor input(const at::Tensor&) const` for every input.
template <class P>
concept MemoryFormatPolicy = requires(const P& policy, torch::nn::Module& module, const at::Tensor& tensor) {
  policy.convert(module);
  &P::input;
};

/// `auto micro_step(bool last)`: an object whose life spans one micro-batch; reductions happen on the last only.
/// `void finish()` after the last backward; `void agree(at::Tensor& refused)`: every rank skips or none;
/// `void reduce_count(double& host, at::Tensor& device)`: targets of the window over all ranks. Besides, where it has
/// them:
/// - `before_backward(loss_sum)` before each backward; `reduces_at_finish()`: gradients are the parameters' own until
///   finish(); `reduce_loss(loss_sum)` after it; `reduce_sum(sum)` at the end of an evaluation; `evaluation_scope()`
///   around one;
/// - `by_itself()`: an object around a forward and backward without other ranks; `run(window)`: around a window's;
/// - `any_out_of_memory(here)`, asked after each attempt at a window when TrainerOptions::on_oom halves micro-batches:
///   every rank starts the window again, or none;
/// - `require_even(windows, batches)` when fit begins (nullopt: not known); `any_has_data(batches)` before each window,
///   and `join_window()` where this rank has none; `any_stops(here)`, and `agree_to_stop(here)` at an epoch's end;
/// - `before_step(batches)` and `before_evaluation()` before a window and an evaluation by hand;
/// - `scaled_by(scale)` before a window; `after_step(refused, optimizer)` after the update;
/// - `check_optimizer(optimizer)` and `attach(module, device)` when the Trainer is made; `device()`: where to train;
///   `group()`: whose ranks save together; and, as any policy, `validate()`, `bind(trainer, loader)` and events.
template <class P>
concept DistributedPolicy = requires(P& policy, at::Tensor& tensor, double& count) {
  policy.micro_step(true);
  policy.finish();
  policy.agree(tensor);
  policy.reduce_count(count, tensor);
};

/// `auto clip(std::vector<at::Tensor>& gradients)`, or with a second parameter `const ClipContext&`: a ClipResult
/// {norm, refused}; works on the device. Where it has `void after_step(const at::Tensor& refused)`, that is called once
/// it is known whether the step was taken.
template <class P>
concept ClippingPolicy = requires {
  &P::clip;
};

/// `double factor(int64_t step) const`: what multiplies every group's learning rate at optimizer step `step` (from 0);
/// closed form: the same step always gives the same factor.
template <class P>
concept SchedulePolicy = requires(const P& policy, std::int64_t step) {
  { policy.factor(step) } -> std::convertible_to<double>;
};

/// `void update(const at::Tensor& refused)` after every window; `refused` may be undefined.
template <class P>
concept AveragingPolicy = requires(P& policy, const at::Tensor& refused) {
  policy.update(refused);
};

/// `void begin()` before a window, `at::Tensor check(loss_sum, grad_norm, found_inf)` after its backward: 0-dim
/// float32, 1: refuse the step; and `void end(WindowReplay)` after the step, with what runs the window again.
template <class P>
concept GuardPolicy = requires(P& policy, const at::Tensor& tensor) {
  policy.begin();
  policy.check(tensor, tensor, tensor);
  &P::end;
};

/// `void run(Callable)`: calls it, or replays what an earlier call recorded.
template <class P>
concept CapturePolicy = requires(P& policy, void (*step)()) {
  policy.run(step);
};

/// The part of a precision policy that scales: the step multiplies the root gradient by root_scale() (0-dim;
/// undefined: 1), calls unscale(gradients), which gives 0-dim found_inf (undefined: cannot happen), and with one
/// after_step(found_inf, idle); idle (undefined or 0-dim
/// float32) is 1 when the window had no targets.
template <class P>
concept ScalesGradients = requires(P& policy, const at::Tensor& flag) {
  &P::root_scale;
  &P::unscale;
  policy.after_step(flag, flag);
};

}  // namespace saturate
