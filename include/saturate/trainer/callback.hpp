// SPDX-License-Identifier: Apache-2.0
// What makes an object a callback, and the checks that turn a misspelt or wrongly declared event into a sentence. Free
// of LibTorch; the events themselves are in events.hpp.
#pragma once

#include "saturate/policy_pack.hpp"

#include <type_traits>

namespace saturate {

struct FitBegin;
struct EpochBegin;
struct StepEvent;
struct LogEvent;
struct EvaluateEvent;
struct EpochEnd;
struct FitEnd;

namespace detail {

// "Has a member of that name" (also one with a wrong parameter) apart from "takes the event".
#define SATURATE_EVENT(name, Event)                                                                               \
  template <class C>                                                                                              \
  concept Names_##name = requires {                                                                               \
    &C::name;                                                                                                     \
  };                                                                                                              \
  template <class C>                                                                                              \
  concept Takes_##name = requires(C & callback, const Event& event) {                                             \
    callback.name(event);                                                                                         \
  };                                                                                                              \
  template <class C>                                                                                              \
  struct Check_##name {                                                                                           \
    static_assert(!Names_##name<C> || Takes_##name<C>,                                                            \
                  "saturate: " #name " has the wrong signature; expected `void " #name "(const saturate::" #Event \
                  "&)` (docs/policies.md#events)");                                                               \
  };

SATURATE_EVENT(on_fit_begin, FitBegin)
SATURATE_EVENT(on_epoch_begin, EpochBegin)
SATURATE_EVENT(on_step, StepEvent)
SATURATE_EVENT(on_log, LogEvent)
SATURATE_EVENT(on_evaluate, EvaluateEvent)
SATURATE_EVENT(on_epoch_end, EpochEnd)
SATURATE_EVENT(on_fit_end, FitEnd)
#undef SATURATE_EVENT

template <class C>
concept NamesAnEvent = Names_on_fit_begin<C> || Names_on_epoch_begin<C> || Names_on_step<C> || Names_on_log<C> ||
    Names_on_evaluate<C> || Names_on_epoch_end<C> || Names_on_fit_end<C>;
template <class C>
concept TakesAnEvent = Takes_on_fit_begin<C> || Takes_on_epoch_begin<C> || Takes_on_step<C> || Takes_on_log<C> ||
    Takes_on_evaluate<C> || Takes_on_epoch_end<C> || Takes_on_fit_end<C>;

template <class P>
struct CheckFitsSomewhere {
  static_assert(NamesAnEvent<P> || TakesAnEvent<P>,
                "saturate: this type fits no axis and implements no event: a policy has a nested `axis` "
                "(docs/policies.md#axes), a callback at least one of on_fit_begin, on_epoch_begin, on_step, on_log, "
                "on_evaluate, on_epoch_end, on_fit_end (docs/policies.md#events)");
};

// A type without an axis is a callback. One error per mistake: signatures are checked only when a name fits.
template <class C>
struct CheckCallback {
  using checked = std::integral_constant<std::size_t, sizeof(CheckFitsSomewhere<C>) + sizeof(Check_on_fit_begin<C>) +
                                                          sizeof(Check_on_epoch_begin<C>) + sizeof(Check_on_step<C>) +
                                                          sizeof(Check_on_log<C>) + sizeof(Check_on_evaluate<C>) +
                                                          sizeof(Check_on_epoch_end<C>) + sizeof(Check_on_fit_end<C>)>;
};
template <class P>
struct CheckMember {
  static constexpr auto choose() {
    if constexpr (HasAxis<P>) {
      return std::type_identity<Contract<unwrapped<P>>>{};
    } else {
      return std::type_identity<CheckCallback<unwrapped<P>>>{};
    }
  }
  using type = typename decltype(choose())::type;
};

template <class Axis, class... Ps>
struct CheckOnePerAxis {
  static_assert(count_on_axis<Axis, Ps...> <= 1,
                "saturate: two policies are given for one axis; keep one of them (docs/policies.md#axes)");
};
template <class... Ps>
struct CheckPairs {
  static_assert(!(excludes_any<Ps, Ps...>() || ...),
                "saturate: two of these policies cannot work together; each one's page says why "
                "(docs/composition.md)");
};

/// Every check of a pack: completing it with a faulty pack gives one error, a sentence. A struct and not a constexpr
/// function, because Clang adds errors of its own about the function.
template <class... Ps>
struct CheckPack {
  using checked = std::integral_constant<
      std::size_t,
      (sizeof(CheckOnePerAxis<axis::precision, Ps...>) + sizeof(CheckOnePerAxis<axis::accumulation, Ps...>) +
       sizeof(CheckOnePerAxis<axis::recompute, Ps...>) + sizeof(CheckOnePerAxis<axis::memory_format, Ps...>) +
       sizeof(CheckOnePerAxis<axis::distributed, Ps...>) + sizeof(CheckOnePerAxis<axis::clipping, Ps...>) +
       sizeof(CheckOnePerAxis<axis::schedule, Ps...>) + sizeof(CheckOnePerAxis<axis::averaging, Ps...>) +
       sizeof(CheckOnePerAxis<axis::guard, Ps...>) + sizeof(CheckOnePerAxis<axis::capture, Ps...>) +
       sizeof(CheckOnePerAxis<axis::options, Ps...>) + sizeof(CheckPairs<Ps...>) +
       (std::size_t{0} + ... + sizeof(typename CheckMember<Ps>::type)))>;
};

}  // namespace detail
}  // namespace saturate
