// SPDX-License-Identifier: Apache-2.0
// The axes of the Trainer, the contract of a policy on each, and how a pack of policies in any order is sorted into
// them. Free of LibTorch, so that mistakes are found in a fraction of a second. docs/policies.md has the contracts
// in prose and how to write a policy.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

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

/// `auto scope() const`: an object whose life spans forward.
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
/// `void reduce_count(double& host, at::Tensor& device)`: targets of the window over all ranks.
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

namespace detail {

template <class T>
using unwrapped = std::remove_cvref_t<std::unwrap_reference_t<std::remove_cvref_t<T>>>;

template <class P>
concept HasAxis = requires {
  typename unwrapped<P>::axis;
};

template <class Axis, class P>
constexpr bool is_on_axis() {
  if constexpr (HasAxis<P>) {
    return std::is_same_v<typename unwrapped<P>::axis, Axis>;
  } else {
    return false;
  }
}

template <class Axis, class... Ps>
inline constexpr std::size_t count_on_axis = (0 + ... + static_cast<std::size_t>(is_on_axis<Axis, Ps>()));

// The contract of P on its own axis. Each static_assert stands in a struct of its own, completed by sizeof: that puts
// the sentence on the first line of the compiler's output, with GCC and Clang alike.
template <class P>
struct CheckPrecision {
  static_assert(PrecisionPolicy<P>,
                "saturate: a precision policy needs `auto scope(c10::DeviceType) const`, an object that lives while "
                "forward and the loss run (docs/policies.md#precision)");
};
template <class P>
struct CheckAccumulation {
  static_assert(
      AccumulationPolicy<P>,
      "saturate: an accumulation policy needs `int64_t micro_batches() const` (docs/policies.md#accumulation)");
};
template <class P>
struct CheckRecompute {
  static_assert(RecomputePolicy<P>,
                "saturate: a recompute policy needs `auto scope() const`, an object that lives while forward runs "
                "(docs/policies.md#recompute)");
};
template <class P>
struct CheckMemoryFormat {
  static_assert(MemoryFormatPolicy<P>,
                "saturate: a memory-format policy needs `void convert(torch::nn::Module&) const` and `at::Tensor "
                "input(const at::Tensor&) const` (docs/policies.md#memory-format)");
};
template <class P>
struct CheckDistributed {
  static_assert(DistributedPolicy<P>,
                "saturate: a distributed policy needs micro_step(bool), finish(), agree(at::Tensor&) and "
                "reduce_count(double&, at::Tensor&) (docs/policies.md#distributed)");
};
template <class P>
struct CheckClipping {
  static_assert(ClippingPolicy<P>,
                "saturate: a clipping policy needs `saturate::ClipResult clip(std::vector<at::Tensor>&) const` "
                "(docs/policies.md#clipping)");
};
template <class P>
struct CheckSchedule {
  static_assert(SchedulePolicy<P>,
                "saturate: a schedule policy needs `double factor(int64_t step) const` (docs/policies.md#schedule)");
};
template <class P>
struct CheckAveraging {
  static_assert(AveragingPolicy<P>,
                "saturate: an averaging policy needs `void update(const at::Tensor& refused)` "
                "(docs/policies.md#averaging)");
};
template <class P>
struct CheckGuard {
  static_assert(GuardPolicy<P>,
                "saturate: a guard policy needs begin(), check(loss_sum, grad_norm, found_inf) and end(WindowReplay) "
                "(docs/policies.md#guard)");
};
template <class P>
struct CheckCapture {
  static_assert(CapturePolicy<P>, "saturate: a capture policy needs `void run(Callable)` (docs/policies.md#capture)");
};
template <class P>
struct CheckKnownAxis {
  static_assert(sizeof(P) == 0,
                "saturate: this type's `axis` names none of the Trainer's axes; saturate::axis lists them "
                "(docs/policies.md#axes)");
};

// The struct that checks P, chosen by its axis.
template <class Axis, template <class> class Check>
struct ContractOf {};
template <class P, class Known, class... More>
struct FindContract;
template <class P>
struct FindContract<P, void> {
  using type = CheckKnownAxis<P>;
};
template <class P, class Axis, template <class> class Check, class... More>
struct FindContract<P, ContractOf<Axis, Check>, More...> {
  using type =
      typename std::conditional_t<is_on_axis<Axis, P>(), std::type_identity<Check<P>>, FindContract<P, More...>>::type;
};
template <class P>
struct CheckOptions {};
template <class P>
using Contract = typename FindContract<
    P, ContractOf<axis::precision, CheckPrecision>, ContractOf<axis::accumulation, CheckAccumulation>,
    ContractOf<axis::recompute, CheckRecompute>, ContractOf<axis::memory_format, CheckMemoryFormat>,
    ContractOf<axis::distributed, CheckDistributed>, ContractOf<axis::clipping, CheckClipping>,
    ContractOf<axis::schedule, CheckSchedule>, ContractOf<axis::averaging, CheckAveraging>,
    ContractOf<axis::guard, CheckGuard>, ContractOf<axis::capture, CheckCapture>,
    ContractOf<axis::options, CheckOptions>, void>::type;

// Pairs that cannot work together.
template <class P, class Q>
constexpr bool excludes() {
  using A = unwrapped<P>;
  if constexpr (requires { typename A::excludes; }) {
    return []<class... Others>(Excludes<Others...>) {
      return (std::is_same_v<Others, unwrapped<Q>> || ...);
    }(typename A::excludes{});
  } else {
    return false;
  }
}
template <class P, class... Ps>
constexpr bool excludes_any() {
  return (excludes<P, Ps>() || ...);
}

// Sorting ------------------------------------------------------------------------------------------------------------

template <class Axis, class... Ps>
constexpr std::size_t index_on_axis() {
  std::size_t index = 0, result = sizeof...(Ps);
  ((is_on_axis<Axis, Ps>() && result == sizeof...(Ps) ? result = index : 0, ++index), ...);
  return result;
}

template <class Axis, class Default, class... Ps>
struct Pick {
  static constexpr std::size_t index = index_on_axis<Axis, Ps...>();
  static constexpr auto choose() {
    if constexpr (index < sizeof...(Ps)) {
      return std::type_identity<unwrapped<std::tuple_element_t<index, std::tuple<Ps...>>>>{};
    } else {
      return std::type_identity<Default>{};
    }
  }
  using type = typename decltype(choose())::type;
};

/// The policy on `Axis` in the pack, or `Default`. After an error the first one is taken, so that nothing cascades.
template <class Axis, class Default, class... Ps>
using pick = typename Pick<Axis, Default, Ps...>::type;

}  // namespace detail
}  // namespace saturate
