// SPDX-License-Identifier: Apache-2.0
// The loops around a step: fit and evaluate. trainer.hpp is their face.
#pragma once

#include "saturate/log.hpp"
#include "saturate/observe/range.hpp"
#include "saturate/trainer/events.hpp"
#include "saturate/trainer/fit_meter.hpp"
#include "saturate/trainer/options.hpp"
#include "saturate/trainer/step.hpp"

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <chrono>
#include <concepts>
#include <optional>
#include <ranges>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace saturate::detail {

struct NoValidation {};

template <class Model>
concept ModulePointer = requires(Model& model) {
  { *model.operator->() } -> std::convertible_to<torch::nn::Module&>;
};
template <class Model>
struct CheckModel {
  static_assert(
      ModulePointer<Model>,
      "saturate: the first argument of Trainer is a module holder (TORCH_MODULE) or a std::shared_ptr to a module; "
      "a module by value would be copied without its buffers (docs/policies.md#models)");
};

template <class Loss>
Loss validated(Loss loss) {
  if constexpr (requires { loss.validate(); }) loss.validate();
  return loss;
}

template <class Loader>
std::optional<int64_t> batches_of(Loader& loader) {
  if constexpr (requires {
                  { loader.batches_per_epoch() } -> std::convertible_to<int64_t>;
                }) {
    return loader.batches_per_epoch();
  } else if constexpr (std::ranges::sized_range<Loader>) {
    return static_cast<int64_t>(std::ranges::size(loader));
  } else {
    return std::nullopt;
  }
}

template <class Loader>
void set_epoch(Loader& loader, int64_t epoch) {
  if constexpr (requires {
                  { loader.epoch() } -> std::convertible_to<int64_t>;
                }) {
    if (loader.epoch() == epoch) return;  // also in the middle of it, where load_state has put the loader
  }
  if constexpr (requires { loader.set_epoch(epoch); }) loader.set_epoch(epoch);
}

class Timer {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// Hands out windows of up to `size` batches of one epoch; the last may be shorter.
template <class Loader>
class Windows {
 public:
  using Batch = std::remove_cvref_t<decltype(*std::begin(std::declval<Loader&>()))>;

  Windows(Loader& loader, int64_t size) : at_(std::begin(loader)), end_(std::end(loader)), size_(size) {}

  void next(std::vector<Batch>& window) {
    window.clear();
    const Range wait(ranges::data_wait);
    while (static_cast<int64_t>(window.size()) < size_) {
      // Moved on only now, not right after use: the batch in hand is trained on while the loader prepares the next.
      if (started_) ++at_;
      started_ = at_ != end_;
      if (!started_) return;
      window.push_back(*at_);
    }
  }

 private:
  std::decay_t<decltype(std::begin(std::declval<Loader&>()))> at_;
  std::decay_t<decltype(std::end(std::declval<Loader&>()))> end_;
  int64_t size_;
  bool started_ = false;
};

// The averaged weights, where the averaging policy offers them for evaluation; or the average over ranks.
template <class Policy>
auto evaluation_scope(Policy& policy) {
  if constexpr (requires { policy.evaluation_scope(); }) {
    return policy.evaluation_scope();
  } else {
    return NothingScope();
  }
}

template <class Step, class Loader>
Metrics evaluate(Step& step, torch::nn::Module& module, Loader& loader) {
  step.optimizer->wait();
  const ModeScope eval(module, /*train=*/false);
  const auto averaged = evaluation_scope(step.policies.averaging());
  const auto over_ranks = evaluation_scope(step.policies.distributed());
  Count count;
  at::Tensor sum, correct;
  for (const auto& batch : loader) {
    // Not around the loader: what it makes here is used in training too.
    const at::NoGradGuard no_grad;
    const c10::InferenceMode inference(step.policies.options().inference_mode);
    const auto micro = step.prepare(batch);
    const auto result = step.forward(micro);
    const auto& output = result.first;
    const auto& value = result.second;
    if constexpr (is_sum_count<decltype(value)>) {
      count += value.count;
      add_to(sum, value.sum);
    } else {
      check_loss(value, /*needs_graph=*/false);
      count += step.count_of(micro);
      add_to(sum, value);
    }
    if constexpr (requires { step.loss.correct(output, micro.target); }) {
      add_to(correct, step.loss.correct(output, micro.target));
    }
  }
  if constexpr (requires { step.policies.distributed().reduce_sum(sum); }) {
    step.policies.distributed().reduce_count(count.host, count.device);
    if (sum.defined()) step.policies.distributed().reduce_sum(sum);
    if (correct.defined()) step.policies.distributed().reduce_sum(correct);
  }
  return read_metrics(count, sum, correct);
}

template <class Trainer>
class Loop {
 public:
  Loop(Trainer& trainer, const FitOptions& options) : trainer_(trainer), options_(options) { options.validate(); }

  template <class Loader, class Validation>
  FitResult run(Loader& loader, Validation&& validation) {
    const int64_t per_window = policies().accumulation().micro_batches();
    std::optional<int64_t> windows;
    const std::optional<int64_t> batches = batches_of(loader);
    if (batches) windows = (*batches + per_window - 1) / per_window;
    TrainerState& state = trainer_.state_;
    state.stop = false;
    if constexpr (requires { policies().distributed().require_even(windows, batches); }) {
      policies().distributed().require_even(windows, batches);
    }
    policies().for_each([&](auto& policy) {
      if constexpr (requires { policy.bind(trainer_, loader); }) policy.bind(trainer_, loader);
    });
    const int64_t steps_before = trainer_.step_.counter.exact();
    FitMeter meter(options_, windows);
    tell(FitBegin{state, options_.epochs, windows, element_count(*trainer_.step_.optimizer)}, meter);
    try {
      for (int64_t epoch = 0; epoch < options_.epochs && !state.stop && !meter.out_of_windows(); ++epoch) {
        meter.begin_epoch(epoch);
        run_epoch(loader, validation, meter, per_window);
      }
    } catch (...) {
      tell(FitEnd{state, meter.seconds(), /*failed=*/true}, meter);
      throw;
    }
    trainer_.step_.optimizer->wait();
    state.step = trainer_.step_.counter.exact();
    tell(FitEnd{state, meter.seconds(), false}, meter);
    FitResult result = meter.result();
    result.steps = state.step - steps_before;
    result.stopped = state.stop || meter.out_of_windows();
    return result;
  }

 private:
  template <class Loader, class Validation>
  void run_epoch(Loader& loader, Validation& validation, FitMeter& meter, int64_t per_window) {
    TrainerState& state = trainer_.state_;
    set_epoch(loader, state.epoch);
    tell(EpochBegin{state}, meter);
    bool evaluated = false, any = false;
    const Timer first_wait;
    std::optional<Range> begins(std::in_place, ranges::data_wait);
    Windows<Loader> windows(loader, per_window);
    begins.reset();
    std::vector<typename Windows<Loader>::Batch> window;
    meter.waited(first_wait.seconds());
    while (!stopped() && !meter.out_of_windows()) {
      const Timer wait;
      windows.next(window);
      meter.waited(wait.seconds());
      if (!any_has_data(static_cast<int64_t>(window.size()))) break;
      any = true;
      const StepResult result = step(window);
      window.clear();  // the loader's slots are free again before callbacks run
      meter.trained(result);
      evaluated = meter.evaluate_due(state);
      tell(step_event(result, evaluated && validates<Validation>), meter);
      if (meter.log_due()) log(meter);
      if (evaluated) evaluate(validation, meter);
    }
    if (!any) log::warn("fit: the loader gave no batch: fewer samples than one batch, and drop_last leaves those out?");
    if (meter.anything_to_log()) log(meter);
    if (any && !evaluated) evaluate(validation, meter);
    ++state.epoch;
    tell(EpochEnd{state, meter.epoch_seconds()}, meter);
    if constexpr (requires { policies().distributed().agree_to_stop(state.stop); }) {
      state.stop = policies().distributed().agree_to_stop(state.stop);
    }
  }

  // Ranks stop together, or one would wait for the others.
  bool stopped() {
    TrainerState& state = trainer_.state_;
    if constexpr (requires { policies().distributed().any_stops(state.stop); }) {
      state.stop = policies().distributed().any_stops(state.stop);
    }
    return state.stop;
  }
  bool any_has_data(int64_t batches) {
    if constexpr (requires { policies().distributed().any_has_data(batches); }) {
      return policies().distributed().any_has_data(batches);
    } else {
      return batches > 0;
    }
  }
  template <class Batch>
  StepResult step(const std::vector<Batch>& window) {
    if constexpr (requires { policies().distributed().join_window(); }) {
      if (window.empty()) return trainer_.counted(trainer_.step_.template without_data<Batch>());
    }
    return trainer_.counted(trainer_.run_step(window));
  }

  template <class Validation>
  static constexpr bool validates = !std::is_same_v<std::remove_cvref_t<Validation>, NoValidation>;

  StepEvent step_event(const StepResult& result, bool evaluates) {
    return {.state = trainer_.state_,
            .loss_sum = result.loss_sum,
            .count = result.count.device,
            .host_count = result.count.host,
            .grad_norm = result.grad_norm,
            .refused = result.refused,
            .evaluates = evaluates};
  }

  void log(FitMeter& meter) { tell(meter.log(trainer_.state_, trainer_.learning_rate()), meter); }

  template <class Validation>
  void evaluate(Validation& validation, FitMeter& meter) {
    if constexpr (validates<Validation>) {
      const Timer timer;
      const Metrics metrics = detail::evaluate(trainer_.step_, trainer_.module(), validation);
      meter.leave_out(timer.seconds());
      tell(EvaluateEvent{trainer_.state_, metrics}, meter);
      const Timer after;
      policies().for_each([](auto& policy) {
        if constexpr (requires { policy.after_evaluation(); }) policy.after_evaluation();
      });
      meter.leave_out(after.seconds());
    }
  }

  template <class Event>
  void tell(const Event& event, FitMeter& meter) {
    const Timer timer;
    if (policies().template anyone_takes<Event>()) trainer_.step_.optimizer->wait();
    policies().tell(event);
    meter.leave_out(timer.seconds());
  }

  auto& policies() { return trainer_.step_.policies; }

  Trainer& trainer_;
  FitOptions options_;
};

}  // namespace saturate::detail
