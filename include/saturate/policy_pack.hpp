// SPDX-License-Identifier: Apache-2.0
// How a pack of policies in any order is checked and sorted into its axes. A mistake is one error that reads as a
// sentence. Free of LibTorch, as policy.hpp.
#pragma once

#include "saturate/policy.hpp"

#include <cstddef>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

namespace saturate {
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
