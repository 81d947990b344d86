// SPDX-License-Identifier: Apache-2.0
// Holds the policies and callbacks of a Trainer, given in any order, and finds them by axis or by event.
#pragma once

#include "saturate/accumulation/accumulate.hpp"
#include "saturate/clip/clip_grad_norm.hpp"
#include "saturate/memory_format/channels_last.hpp"
#include "saturate/policy_defaults.hpp"
#include "saturate/policy_pack.hpp"
#include "saturate/precision/precision.hpp"
#include "saturate/schedule/schedule.hpp"
#include "saturate/trainer/callback.hpp"
#include "saturate/trainer/options.hpp"

#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

namespace saturate::detail {

template <class T>
auto& unwrap(T& value) {
  if constexpr (requires { typename T::type; } && std::is_same_v<T, std::reference_wrapper<unwrapped<T>>>) {
    return value.get();
  } else {
    return value;
  }
}

template <class... Ps>
class PolicySet {
  using checked = typename CheckPack<Ps...>::checked;

 public:
  explicit PolicySet(Ps... policies) : pack_(std::move(policies)...) {
    for_each([](auto& policy) {
      if constexpr (requires { policy.validate(); }) policy.validate();
    });
  }

  auto& precision() { return get<axis::precision, Fp32>(); }
  auto& accumulation() { return get<axis::accumulation, OneMicroBatch>(); }
  auto& recompute() { return get<axis::recompute, NoRecompute>(); }
  auto& memory_format() { return get<axis::memory_format, KeepFormat>(); }
  auto& distributed() { return get<axis::distributed, SingleProcess>(); }
  auto& clipping() { return get<axis::clipping, NoClip>(); }
  auto& schedule() { return get<axis::schedule, ConstantLr>(); }
  auto& averaging() { return get<axis::averaging, NoAverage>(); }
  auto& guard() { return get<axis::guard, NoGuard>(); }
  auto& capture() { return get<axis::capture, Eager>(); }
  auto& options() { return get<axis::options, TrainerOptions>(); }

  static constexpr bool scales_gradients = ScalesGradients<pick<axis::precision, Fp32, Ps...>>;
  static constexpr bool clips = !std::is_same_v<pick<axis::clipping, NoClip, Ps...>, NoClip>;
  static constexpr bool guards = !std::is_same_v<pick<axis::guard, NoGuard, Ps...>, NoGuard>;
  static constexpr bool averages = !std::is_same_v<pick<axis::averaging, NoAverage, Ps...>, NoAverage>;
  static constexpr bool treats_gradients = scales_gradients || clips || guards;

  template <class P>
  P& find() {
    static_assert((std::is_same_v<unwrapped<Ps>, P> || ...), "saturate: the Trainer holds no policy of this type");
    P* found = nullptr;
    for_each([&](auto& item) {
      if constexpr (std::is_same_v<std::remove_reference_t<decltype(item)>, P>) found = &item;
    });
    return *found;
  }

  /// Calls `visit` with every policy and callback.
  template <class Visit>
  void for_each(Visit&& visit) {
    std::apply([&](auto&... item) { (visit(unwrap(item)), ...); }, pack_);
  }

  template <class Event>
  static constexpr bool anyone_takes() {
    return (takes<unwrapped<Ps>, Event>() || ...);
  }
  /// Tells every callback, and every policy, that takes this event.
  template <class Event>
  void tell(const Event& event) {
    for_each([&](auto& item) { deliver(item, event); });
  }

 private:
  template <class Axis, class Default>
  auto& get() {
    constexpr std::size_t index = index_on_axis<Axis, Ps...>();
    if constexpr (index < sizeof...(Ps)) {
      return unwrap(std::get<index>(pack_));
    } else {
      return std::get<Default>(defaults_);
    }
  }

  template <class C, class Event>
  static constexpr bool takes() {
    return (std::is_same_v<Event, FitBegin> && Takes_on_fit_begin<C>) ||
           (std::is_same_v<Event, EpochBegin> && Takes_on_epoch_begin<C>) ||
           (std::is_same_v<Event, StepEvent> && Takes_on_step<C>) ||
           (std::is_same_v<Event, LogEvent> && Takes_on_log<C>) ||
           (std::is_same_v<Event, EvaluateEvent> && Takes_on_evaluate<C>) ||
           (std::is_same_v<Event, EpochEnd> && Takes_on_epoch_end<C>) ||
           (std::is_same_v<Event, FitEnd> && Takes_on_fit_end<C>);
  }
  template <class C, class Event>
  static void deliver(C& callback, const Event& event) {
    if constexpr (std::is_same_v<Event, FitBegin> && Takes_on_fit_begin<C>) callback.on_fit_begin(event);
    if constexpr (std::is_same_v<Event, EpochBegin> && Takes_on_epoch_begin<C>) callback.on_epoch_begin(event);
    if constexpr (std::is_same_v<Event, StepEvent> && Takes_on_step<C>) callback.on_step(event);
    if constexpr (std::is_same_v<Event, LogEvent> && Takes_on_log<C>) callback.on_log(event);
    if constexpr (std::is_same_v<Event, EvaluateEvent> && Takes_on_evaluate<C>) callback.on_evaluate(event);
    if constexpr (std::is_same_v<Event, EpochEnd> && Takes_on_epoch_end<C>) callback.on_epoch_end(event);
    if constexpr (std::is_same_v<Event, FitEnd> && Takes_on_fit_end<C>) callback.on_fit_end(event);
  }

  std::tuple<Ps...> pack_;
  std::tuple<Fp32, OneMicroBatch, NoRecompute, KeepFormat, SingleProcess, NoClip, ConstantLr, NoAverage, NoGuard, Eager,
             TrainerOptions>
      defaults_;
};

}  // namespace saturate::detail
