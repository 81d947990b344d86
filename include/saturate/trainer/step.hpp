// SPDX-License-Identifier: Apache-2.0
// One optimizer step, as a list of named calls. Nothing here reads a device value on the host.
#pragma once

#include "saturate/data/batch.hpp"
#include "saturate/for_each_tensor.hpp"
#include "saturate/loss.hpp"
#include "saturate/observe/range.hpp"
#include "saturate/observe/window_replay.hpp"
#include "saturate/optim/optimizer.hpp"
#include "saturate/trainer/count.hpp"
#include "saturate/trainer/halve_microbatch.hpp"
#include "saturate/trainer/micro_batch.hpp"
#include "saturate/trainer/policy_set.hpp"
#include "saturate/trainer/step_counter.hpp"
#include "saturate/trainer/step_policies.hpp"
#include "saturate/trainer/step_result.hpp"
#include "saturate/trainer/step_support.hpp"
#include "saturate/trainer/treat_gradients.hpp"

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace saturate::detail {

template <class Model, class Loss, class Policies>
class Step {
 public:
  Step(Model model, std::shared_ptr<optim::Optimizer> optimizer, Loss loss, Policies policies, c10::Device device)
      : model(std::move(model)),
        optimizer(std::move(optimizer)),
        loss(std::move(loss)),
        policies(std::move(policies)),
        device(device),
        counter(device, this->policies.options().count_on_device.value_or(device.is_cuda())),
        halving_(this->policies.options().on_oom),
        parameters_(this->optimizer->parameters()) {}

  template <class Batch>
  StepResult operator()(std::span<const Batch> window) {
    require_window(window.size());
    const ClearOnError clear(*optimizer);
    const auto precision = window_scope(policies.precision());
    const auto recompute = window_scope(policies.recompute());
    auto micro_batches = prepare(window);
    optimizer->wait();
    StepResult result;
    for (const auto& micro : micro_batches) result.samples += micro.samples;
    result.count = count_targets(micro_batches);
    policies.guard().begin();
    tell_scale();
    policies.capture().run([&] {
      run_window(policies.distributed(), [&] {
        backward_within_memory(micro_batches, result);
        if constexpr (requires { policies.recompute().after_backward(); }) policies.recompute().after_backward();
        finish_reduction();
        if constexpr (requires { policies.distributed().reduce_loss(result.loss_sum); }) {
          policies.distributed().reduce_loss(result.loss_sum);
        }
      });
      update(result);
    });
    if constexpr (requires { policies.precision().after_window(); }) policies.precision().after_window();
    if constexpr (Policies::guards) policies.guard().end(replay_of(std::move(micro_batches), result.count));
    return result;
  }

  /// A window of which only other ranks have data: takes part in what ranks do together.
  template <class Batch>
  StepResult without_data() {
    const ClearOnError clear(*optimizer);
    using Micro = decltype(prepare(std::declval<const Batch&>()));
    using Value = decltype(forward(std::declval<const Micro&>()).second);
    divides_later_ = is_sum_count<Value>;
    optimizer->wait();
    StepResult result;
    policies.distributed().reduce_count(result.count.host, result.count.device);
    tell_scale();
    run_window(policies.distributed(), [&] {
      policies.distributed().join_window();
      while (halving_.enabled() && any_out_of_memory(policies.distributed(), false)) {
        optimizer->zero_grad();
        policies.distributed().join_window();
      }
      if (divides_later_) result.count = over_ranks(Count());
      finish_reduction();
      policies.distributed().reduce_loss(result.loss_sum);
    });
    update(result);
    return result;
  }

  /// Loss and output of one batch, under the precision and recompute policies.
  template <class Micro>
  auto forward(const Micro& micro) {
    const Range range(ranges::forward);
    const auto precision = policies.precision().scope(device.type());
    const auto recompute = policies.recompute().scope();
    auto output = std::apply([&](const auto&... input) { return model->forward(input...); }, micro.inputs);
    auto value = loss(std::as_const(output), micro.target);
    return std::pair(std::move(output), std::move(value));
  }

  /// Forward and backward of a batch's first `samples`, without other ranks. Leaves gradients behind.
  template <class Batch>
  void probe(const Batch& batch, int64_t samples) {
    const auto precision = window_scope(policies.precision());
    const auto micro = rows(prepare(batch), 0, samples);
    StepResult unused;
    unused.count = count_of(micro);
    const auto alone = without_others();
    optimizer->wait();
    run(micro, unused.count, unused);
    optimizer->gather_gradients();
  }

  template <class Batch>
  auto prepare(const Batch& batch) {
    const Range range(ranges::copy_to_device);
    auto inputs =
        std::apply([](const auto&... input) { return std::tuple<std::remove_cvref_t<decltype(input)>...>(input...); },
                   batch_inputs(batch));
    auto target = batch_target(batch);
    visit_tensors(target, [&](at::Tensor& tensor) { move_to(tensor, device); });
    visit_tensors(inputs, [&](at::Tensor& tensor) {
      move_to(tensor, device);
      tensor = policies.memory_format().input(tensor);
    });
    const int64_t samples = first_size(inputs);
    return MicroBatch<decltype(inputs), decltype(target)>{std::move(inputs), std::move(target), samples};
  }

  template <class Micro>
  Count count_of(const Micro& micro) const {
    if constexpr (CountsTargets<Loss, decltype(micro.target)>) {
      return loss.count(micro.target);
    } else {
      return micro.samples;
    }
  }

  Model model;
  std::shared_ptr<optim::Optimizer> optimizer;
  Loss loss;
  Policies policies;
  c10::Device device;
  StepCounter counter;

 private:
  template <class Batch>
  auto prepare(std::span<const Batch> window) {
    std::vector<decltype(prepare(window[0]))> result;
    result.reserve(window.size());
    for (const Batch& batch : window) result.push_back(prepare(batch));
    return result;
  }

  template <class MicroBatches>
  Count count_targets(const MicroBatches& micro_batches) {
    Count count;
    for (const auto& micro : micro_batches) count += count_of(micro);
    policies.distributed().reduce_count(count.host, count.device);
    return count;
  }

  template <class MicroBatches>
  void backward_within_memory(MicroBatches& micro_batches, StepResult& result) {
    const StepResult before = result;
    Count counted;
    const auto attempt = [&](const MicroBatches& these) {
      result = before;
      counted = backward(these, result);
    };
    halving_.run(
        micro_batches, *model.operator->(), device, attempt, [&] { optimizer->zero_grad(); },
        [&](bool here) { return any_out_of_memory(policies.distributed(), here); });
    // Not in an attempt: a rank that ran out of memory would miss it.
    if (divides_later_) result.count = over_ranks(std::move(counted));
  }

  Count over_ranks(Count count) {
    policies.distributed().reduce_count(count.host, count.device);
    return count;
  }

  /// @return what the loss has counted, where it counts by the forward pass.
  template <class MicroBatches>
  Count backward(const MicroBatches& micro_batches, StepResult& result) {
    Count counted;
    for (std::size_t i = 0; i < micro_batches.size(); ++i) {
      const auto sync = policies.distributed().micro_step(i + 1 == micro_batches.size());
      counted += run(micro_batches[i], result.count, result);
    }
    return counted;
  }

  /// Forward and backward. @return what the loss has counted, where it counts by the forward pass.
  template <class Micro>
  Count run(const Micro& micro, const Count& count, StepResult& result) {
    const auto value = forward(micro).second;  // the output would outlive its use
    divides_later_ = is_sum_count<std::remove_cvref_t<decltype(value)>>;
    if constexpr (is_sum_count<std::remove_cvref_t<decltype(value)>>) {
      backward_one(value.sum, Count(1.0), result);
      return value.count;
    } else {
      backward_one(value, count, result);
      return {};
    }
  }

  void backward_one(const at::Tensor& sum, const Count& count, StepResult& result) {
    const Range range(ranges::backward);
    check_loss(sum, /*needs_graph=*/true);
    const at::Tensor wide = at_least_float(sum);
    if constexpr (requires { policies.distributed().before_backward(wide); }) {
      policies.distributed().before_backward(wide);
    }
    run_backward(wide, root_.get(count, root_scale(), wide));
    if (!reduces_at_finish()) optimizer->gather_gradients();
    // tensor_data() shares the value without the graph, and runs no operator.
    add_to(result.loss_sum, wide.tensor_data());
  }

  auto without_others() {
    if constexpr (requires { policies.distributed().by_itself(); }) {
      return policies.distributed().by_itself();
    } else {
      return policies.distributed().micro_step(false);
    }
  }

  bool reduces_at_finish() {
    if constexpr (requires { policies.distributed().reduces_at_finish(); }) {
      return policies.distributed().reduces_at_finish();
    } else {
      return false;
    }
  }

  void finish_reduction() {
    const Range range(ranges::reduce);
    policies.distributed().finish();
    if (reduces_at_finish()) optimizer->gather_gradients();
  }

  at::Tensor root_scale() {
    if constexpr (Policies::scales_gradients) {
      return policies.precision().root_scale();
    } else {
      return {};
    }
  }

  /// What ranks keep of a window's gradients (error feedback) is in units of its scale.
  void tell_scale() {
    if constexpr (Policies::scales_gradients && requires { policies.distributed().scaled_by(at::Tensor()); }) {
      policies.distributed().scaled_by(policies.precision().root_scale());
    }
  }

  void update(StepResult& result) {
    const at::Tensor empty = refuse_empty(result.count);
    result.refused = empty;
    at::Tensor found_inf;
    if (Policies::treats_gradients || divides_later_) {
      const Range range(ranges::clip);
      GradientList list = defined_gradients(*optimizer, parameters_);
      if (divides_later_) divide(list.gradients, result.count);
      found_inf = treat_gradients(policies, list, result);
    }
    policies.distributed().agree(result.refused);
    const Range range(ranges::optimizer);
    const bool nothing = nothing_to_learn(result);
    if (!nothing) {
      optim::StepArgs args = step_args(policies.schedule(), counter, schedule_revision_);
      args.found_inf = result.refused;
      counter.fill(args, [&](int64_t step) { return policies.schedule().factor(step); });
      optimizer->start_step(args);
    }
    if constexpr (Policies::scales_gradients) {
      if (!nothing && found_inf.defined()) policies.precision().after_step(found_inf, empty);
    }
    if constexpr (requires { policies.clipping().after_step(result.refused); }) {
      if (!nothing) policies.clipping().after_step(result.refused);
    }
    if constexpr (requires { policies.distributed().after_step(result.refused, optimizer.get()); }) {
      policies.distributed().after_step(result.refused, optimizer.get());
    }
    counter.advance(result.refused);
    if constexpr (Policies::averages) optimizer->wait();
    policies.averaging().update(result.refused);
    optimizer->zero_grad();
  }

  /// Runs a window again: forward and backward without an update, and without other ranks. Leaves gradients behind.
  template <class MicroBatches>
  WindowReplay replay_of(MicroBatches micro_batches, Count count) {
    auto kept = std::make_shared<MicroBatches>(std::move(micro_batches));
    WindowReplay replay = replay_with_tensors(*kept);
    replay.run = [this, kept, count] {
      const auto precision = window_scope(policies.precision());
      StepResult unused;
      unused.count = count;
      for (const auto& micro : *kept) {
        const auto alone = without_others();
        run(micro, count, unused);
        optimizer->gather_gradients();
      }
    };
    replay.gradients = [this] { return optimizer->gradients(); };
    replay.clear = [this] { optimizer->zero_grad(); };
    if constexpr (requires { policies.precision().keep_fp32(std::string()); }) {
      replay.keep_fp32 = [this](const std::string& pattern) { policies.precision().keep_fp32(pattern); };
    }
    return replay;
  }

  // The host knows it: a window without targets is refused like any other, but needs no optimizer.
  bool nothing_to_learn(StepResult& result) const {
    if (!result.count.on_host() || result.count.host > 0) return false;
    result.refused = refused_for_certain(device);
    return true;
  }

  MicrobatchHalving halving_;
  std::vector<at::Tensor> parameters_;
  RootCache root_;
  bool divides_later_ = false;
  int64_t schedule_revision_ = 0;
};

}  // namespace saturate::detail
