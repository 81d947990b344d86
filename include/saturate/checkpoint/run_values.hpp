// SPDX-License-Identifier: Apache-2.0
// What a checkpoint holds of each part of a run. A part of another type joins by an overload of put() and get() for
// what its state() gives.
#pragma once

#include "saturate/averaging/averaged_weights.hpp"
#include "saturate/checkpoint/folder.hpp"
#include "saturate/checkpoint/values.hpp"
#include "saturate/distributed/comm_hook.hpp"
#include "saturate/distributed/process_group.hpp"
#include "saturate/optim/optimizer.hpp"
#include "saturate/policy_pack.hpp"
#include "saturate/precision/grad_scaler.hpp"
#include "saturate/schedule/reduce_lr_on_plateau.hpp"
#include "saturate/trainer/events.hpp"

#include <c10/core/Device.h>

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

namespace torch::nn {
class Module;
}

namespace saturate {

template <class Model, class Loss, class... Policies>
class Trainer;

namespace checkpoint {

void put(Values& values, const TrainerState& state);
void put(Values& values, const optim::OptimizerState& state);
void put(Values& values, const GradScalerState& state);
void put(Values& values, const PlateauState& state);
void put(Values& values, const AveragedState& state);
void put(Values& values, const distributed::HookState& state);
/// @throws StateError (all of these) a value is missing.
void get(const Values& values, TrainerState& state);
void get(const Values& values, optim::OptimizerState& state);
void get(const Values& values, GradScalerState& state);
void get(const Values& values, PlateauState& state);
void get(const Values& values, AveragedState& state);
void get(const Values& values, distributed::HookState& state);

void put_parameters(Values& values, const torch::nn::Module& module);
void put_buffers(Values& values, const torch::nn::Module& module);
/// @throws StateError names, shapes or dtypes differ.
void check_tensors(const Values& values, const torch::nn::Module& module);
void get_parameters(const Values& values, torch::nn::Module& module);
void get_buffers(const Values& values, torch::nn::Module& module);
/// Averages of buffers, which differ from rank to rank as the buffers do.
void put_buffers(Values& values, const AveragedState& state, const torch::nn::Module& module);

/// The default random streams of the CPU and, where the device is one, of the GPU.
void put_random(Values& values, c10::Device device);
/// @throws StateError they were saved without that GPU.
void get_random(const Values& values, c10::Device device);

namespace detail {

/// A policy with a state of its own that put() knows.
template <class P>
concept HasSavedState = requires(P& policy, Values& values) {
  put(values, policy.state());
  policy.load_state(policy.state());
};
template <class P>
concept HasAverages = requires(P& policy) {
  { policy.state() } -> std::same_as<AveragedState>;
};
template <class P>
concept HasScaler = requires(P& policy) {
  { policy.scaler().state() } -> std::same_as<GradScalerState>;
};
template <class P>
concept HasGroup = requires(P& policy) {
  { policy.group() } -> std::convertible_to<distributed::ProcessGroup>;
};
template <class P>
concept HasHook = HasGroup<P> && requires(P& policy) {
  { policy.ddp().hook().state() } -> std::same_as<distributed::HookState>;
};
/// A loader that says where it is, in a text (data::LoaderState).
template <class Loader>
concept HasPlace = requires(Loader& loader) {
  { loader.state().text() } -> std::convertible_to<std::string>;
  { loader.state().epoch } -> std::convertible_to<int64_t>;
  loader.load_state(loader.state());
};

template <class Policy>
void get_state(const Values& values, Policy& policy) {
  auto state = policy.state();
  get(values, state);
  policy.load_state(state);
}

/// The parts of one run.
template <class Trainer, class Loader>
class Run;

template <class Model, class Loss, class... Policies, class Loader>
class Run<Trainer<Model, Loss, Policies...>, Loader> {
 public:
  using TrainerOf = Trainer<Model, Loss, Policies...>;
  Run(TrainerOf& trainer, Loader& loader) : trainer_(&trainer), loader_(&loader) {}

  distributed::ProcessGroup group() const {
    distributed::ProcessGroup group;
    each([&](auto& policy) {
      if constexpr (HasGroup<std::remove_reference_t<decltype(policy)>>) group = policy.group();
    });
    return group;
  }

  TrainerState state() const {
    TrainerState state = trainer_->state();
    if constexpr (HasPlace<Loader>) state.epoch = loader_->state().epoch;  // of an epoch that a stop has cut short, too
    return state;
  }

  /// Whether training can go on from this place of the data. Where an epoch is all but over it cannot: what is done at
  /// its end would be left out.
  bool within_epoch() const {
    if constexpr (HasPlace<Loader>) {
      return loader_->state().epoch == trainer_->state().epoch;
    } else {
      return false;
    }
  }

  Values shared() const {
    Values values;
    put(values, state());
    put_parameters(values, module());
    put(values, trainer_->optimizer().state());
    each([&](auto& policy) {
      using P = std::remove_reference_t<decltype(policy)>;
      if constexpr (HasScaler<P>) put(values, policy.scaler().state());
      if constexpr (HasSavedState<P>) put(values, policy.state());
    });
    return values;
  }

  Values own() const {
    Values values;
    put_buffers(values, module());
    put_random(values, trainer_->device());
    if constexpr (HasPlace<Loader>) values.texts["loader"] = loader_->state().text();
    each([&](auto& policy) {
      using P = std::remove_reference_t<decltype(policy)>;
      if constexpr (HasAverages<P>) put_buffers(values, policy.state(), module());
      if constexpr (HasHook<P>) {
        if (policy.group().world_size() > 1) put(values, policy.ddp().hook().state());
      }
    });
    return values;
  }

  /// Called by every rank. In parts, after each of which ranks agree that all are well: an optimizer may load together
  /// with the other ranks' (ShardedOptimizer), and none may wait there for one that has failed before.
  /// @throws StateError or ConfigError, on every rank: what was saved does not fit. The model has not been changed
  /// then.
  void load(Values values, const Values& own) const {
    const auto part = [ranks = group()](const auto& work) { on_all_ranks(ranks, "resume", work); };
    optim::OptimizerState optimizer;
    part([&] {
      values.merge(own);
      check_tensors(values, module());
      get(values, optimizer);
      if constexpr (HasPlace<Loader>) {
        loader_->load_state(std::remove_cvref_t<decltype(loader_->state())>::parse(values.text("loader")));
      }
    });
    part([&] { trainer_->optimizer().load_state(optimizer); });
    part([&] {
      each([&](auto& policy) { load_policy(values, policy); });
      load_rest(values);
    });
  }

 private:
  void load_rest(const Values& values) const {
    get_parameters(values, module());
    get_buffers(values, module());
    TrainerState state = trainer_->state();
    get(values, state);
    trainer_->load_state(state);
    get_random(values, trainer_->device());
  }
  template <class P>
  static void load_policy(const Values& values, P& policy) {
    if constexpr (HasScaler<P>) get_state(values, policy.scaler());
    if constexpr (HasSavedState<P>) get_state(values, policy);
    if constexpr (HasHook<P>) {
      if (policy.group().world_size() > 1) get_state(values, policy.ddp().hook());
    }
  }
  template <class Visit>
  void each(Visit visit) const {
    (visit_with_inner(trainer_->template policy<saturate::detail::unwrapped<Policies>>(), visit), ...);
  }
  /// Warmup has another schedule inside.
  template <class P, class Visit>
  static void visit_with_inner(P& policy, Visit& visit) {
    visit(policy);
    if constexpr (requires { policy.inner; }) visit_with_inner(policy.inner, visit);
  }
  torch::nn::Module& module() const { return *trainer_->model().operator->(); }

  TrainerOf* trainer_;
  Loader* loader_;
};

}  // namespace detail
}  // namespace checkpoint
}  // namespace saturate
