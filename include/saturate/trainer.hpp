// SPDX-License-Identifier: Apache-2.0
// START HERE. The Trainer ties a LibTorch model, an optimizer, a loss and policies together:
//
//   st::Trainer trainer(net, st::optim::AdamW(net->parameters(), {.lr = 1e-3}), st::CrossEntropy{},
//                       st::Bf16{}, st::Accumulate{4}, st::ClipGradNorm{1.0}, st::Progress{});
//   trainer.fit(loader, {.epochs = 3});
//
// Policies and callbacks come constructed and in any order; an axis that none is given for does nothing. Every part
// also works alone in a loop of your own: the Trainer only calls what you could call. trainer/step.hpp is one step.
#pragma once

#include "saturate/marks.hpp"
#include "saturate/observe/fits.hpp"
#include "saturate/optim/torch_optimizer.hpp"
#include "saturate/trainer/events.hpp"
#include "saturate/trainer/loop.hpp"
#include "saturate/trainer/options.hpp"
#include "saturate/trainer/step.hpp"

#include <concepts>
#include <cstdint>
#include <memory>
#include <ranges>
#include <span>
#include <type_traits>
#include <utility>

namespace saturate {

template <class Model, class Loss, class... Policies>
class Trainer {
  using checked = std::integral_constant<std::size_t, sizeof(detail::CheckModel<Model>)>;

 public:
  /// @param model a module holder (TORCH_MODULE) or a shared_ptr to a module; its forward takes the batch's inputs.
  /// @param optimizer of saturate::optim or torch::optim: by value (moved), std::ref or std::unique_ptr.
  /// @param loss an object of loss.hpp, or a lambda (output, target) -> sum over the batch.
  /// @throws ConfigError a policy's settings cannot work, or the device is not there; the model is untouched then.
  template <class Optimizer>
  Trainer(Model model, Optimizer&& optimizer, Loss loss, Policies... policies)
      : step_(std::move(model), optim::detail::own(std::forward<Optimizer>(optimizer)),
              detail::validated(std::move(loss)), detail::PolicySet<Policies...>(std::move(policies)...),
              c10::Device(c10::kCPU)) {
    auto wanted = step_.policies.options().device;
    if constexpr (requires { step_.policies.distributed().device(); }) {
      if (!wanted) wanted = step_.policies.distributed().device();
    }
    const c10::Device device = wanted ? *wanted : detail::default_device();
    if constexpr (requires { step_.policies.schedule().check_groups(std::size_t{}); }) {
      step_.policies.schedule().check_groups(detail::group_count(*step_.optimizer));
    }
    if constexpr (requires { step_.policies.distributed().check_optimizer(*step_.optimizer); }) {
      step_.policies.distributed().check_optimizer(*step_.optimizer);
    }
    detail::set_up_model(module(), *step_.optimizer, device, step_.policies.accumulation().micro_batches());
    step_.policies.memory_format().convert(module());
    step_.device = device;
    step_.counter = StepCounter(device, step_.policies.options().count_on_device.value_or(device.is_cuda()));
    names_ = marks::bind(module());
    step_.policies.for_each([&](auto& policy) {
      if constexpr (requires { policy.attach(module(), device); }) policy.attach(module(), device);
    });
  }

  /// Trains `epochs` times over `loader`: any range of batches that can be iterated again (PrefetchLoader,
  /// torch::data's loaders, a std::vector of batches). Where it has set_epoch(e), it is told the epoch.
  template <class Loader>
  FitResult fit(Loader&& loader, const FitOptions& options = {}) {
    return detail::Loop(*this, options).run(loader, detail::NoValidation{});
  }
  /// Evaluates on `validation` besides, every `evaluate_every` windows and at the end of each epoch.
  template <class Loader, class Validation>
  requires(!std::same_as<std::remove_cvref_t<Validation>, FitOptions>) FitResult
      fit(Loader&& loader, Validation&& validation, const FitOptions& options = {}) {
    return detail::Loop(*this, options).run(loader, validation);
  }

  /// One optimizer step from one window: a contiguous range of micro-batches, or a single batch. An exception leaves
  /// parameters, optimizer state and step number as they were, and no gradients behind.
  template <class Window>
  StepResult step(const Window& window) {
    before_step(batches_in(window));
    const StepResult result = counted(run_step(window));
    step_.optimizer->wait();
    return result;
  }

  /// Takes part in a step for which only other ranks have data (UnevenInputs::join; fit does it).
  template <class Batch>
  StepResult step_without_data() {
    before_step(1);
    const StepResult result = counted(step_.template without_data<Batch>());
    step_.optimizer->wait();
    return result;
  }

  /// Mean loss over all targets, and "accuracy" where the loss can tell; in eval mode and without gradients. Modes of
  /// the modules are restored, also after an exception.
  template <class Loader>
  Metrics evaluate(Loader&& loader) {
    if constexpr (requires { step_.policies.distributed().before_evaluation(); }) {
      step_.policies.distributed().before_evaluation();
    }
    return detail::evaluate(step_, module(), loader);
  }

  /// Whether a step with `batch` as its micro-batch would fit in memory, forecast from small parts of it under the
  /// Trainer's policies; nothing is changed. See observe/fits.hpp.
  template <BatchLike Batch>
  FitsReport fits(const Batch& batch, FitsOptions options = {}) {
    if (options.optimizer == nullptr) options.optimizer = step_.optimizer.get();
    const int64_t samples = step_.prepare(batch).samples;
    const detail::ClearOnError clear(*step_.optimizer);
    const auto probe = [&](int64_t n) {
      step_.probe(batch, n);
      step_.optimizer->zero_grad();  // it may keep gradients of its own
    };
    return saturate::fits(module(), samples, step_.device, probe, options);
  }

  /// Where training stands; with a GPU this waits for the exact step number.
  const TrainerState& state() {
    state_.step = step_.counter.exact();
    return state_;
  }
  /// Goes on from there: the counters, and the schedule with the step. Parameters, optimizer and policies are loaded by
  /// themselves (checkpoint.hpp does it).
  void load_state(const TrainerState& state) {
    state_ = state;
    step_.counter.set(state.step);
  }

  Model& model() { return step_.model; }
  optim::Optimizer& optimizer() { return *step_.optimizer; }
  c10::Device device() const { return step_.device; }
  /// The policy or callback of type P that the Trainer holds: trainer.policy<st::Fp16>().scaler().
  template <class P>
  P& policy() {
    return step_.policies.template find<P>();
  }
  /// Names of the model's parts, for marks::Scope.
  const std::shared_ptr<const marks::Names>& names() const { return names_; }
  /// Learning rate of the coming step, first group.
  double learning_rate() { return step_.optimizer->lr() * step_.policies.schedule().factor(step_.counter.known()); }

 private:
  template <class>
  friend class detail::Loop;

  /// A window by hand: ranks may have different numbers of them.
  void before_step(int64_t batches) {
    if constexpr (requires { step_.policies.distributed().before_step(batches); }) {
      step_.policies.distributed().before_step(batches);
    }
  }
  template <class Window>
  static int64_t batches_in(const Window& window) {
    if constexpr (BatchLike<Window>) {
      return 1;
    } else {
      return static_cast<int64_t>(std::ranges::size(window));
    }
  }

  StepResult counted(StepResult result) {
    ++state_.window;
    state_.samples += result.samples;
    state_.step = step_.counter.known();
    return result;
  }

  torch::nn::Module& module() { return *step_.model.operator->(); }

  template <class Window>
  StepResult run_step(const Window& window) {
    if constexpr (BatchLike<Window>) {
      return step_(std::span<const Window>(&window, 1));
    } else {
      return step_(std::span(std::ranges::data(window), std::ranges::size(window)));
    }
  }

  detail::Step<Model, Loss, detail::PolicySet<Policies...>> step_;
  TrainerState state_;
  std::shared_ptr<const marks::Names> names_;
};

template <class Model, class Optimizer, class Loss, class... Policies>
Trainer(Model, Optimizer&&, Loss, Policies...) -> Trainer<Model, Loss, Policies...>;

}  // namespace saturate
