// SPDX-License-Identifier: Apache-2.0
// Turns a model, a loss and a source of data into something the audit can measure:
//
//   auto workload = audit::make_workload({.name = "my net", .batch_size = 64}, [] { return Net(); },
//   st::CrossEntropy{}, source); audit::AuditReport report = audit::Audit(workload,
//   audit::standard_tactics(workload)).run();
//
// The baseline is what one writes first: float32, LibTorch's AdamW, batches read by the training thread.
#pragma once

#include "saturate/audit/runner.hpp"
#include "saturate/audit/runtime_policies.hpp"
#include "saturate/data/loader_ceiling.hpp"
#include "saturate/data/prefetch_loader.hpp"
#include "saturate/observe/memory_meter.hpp"
#include "saturate/observe/memory_report.hpp"
#include "saturate/observe/timing.hpp"
#include "saturate/optim/adamw.hpp"
#include "saturate/schedule/lr_scaling.hpp"
#include "saturate/trainer.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace saturate::audit {

struct WorkloadOptions {
  std::string name;
  std::string description;
  int64_t batch_size = 128;  ///< samples a step; a multiple of 4, so that accumulation can split it
  double lr = 1e-3;
  uint64_t seed = 0;  ///< of weights and order
  /// The curve's batch sizes; empty: a quarter, a half, one, two and four times batch_size.
  std::vector<int64_t> batch_sizes = {};
  std::optional<c10::Device> device = {};
};

namespace detail {

/// torch::optim::AdamW, or the fused one.
std::unique_ptr<optim::Optimizer> make_adamw(const std::vector<at::Tensor>& parameters, double lr, bool fused);
/// Largest block of at most 32 MiB that a run has freed so far: what switching back from kept pages needs to know.
std::atomic<int64_t>& largest_freed_block();
/// Peak over the meter's life: CPU tensors, or the device allocator's.
int64_t peak_bytes(const MemoryMeter& meter, c10::Device device);
void note_freed_blocks(const MemoryMeter& meter);
void wait_for(c10::Device device);
/// Of LibTorch's generators: the weights that follow.
void seed(uint64_t value);
PolicySettings settings_of(const TacticSet& tactics, int64_t batch_size);
/// Recompute::every(n) for a few n, and all(), as far as they differ for a model of so many marked parts.
std::vector<Tactic> recompute_tactics(int64_t marked_parts);
/// Outermost marked parts that execution entered.
class PartCounter final : public marks::Observer {
 public:
  void enter(const std::vector<std::string>& names, const torch::nn::Module&) override;
  void leave(const std::vector<std::string>& names, const torch::nn::Module&) noexcept override;
  int64_t parts() const { return parts_; }

 private:
  int64_t parts_ = 0, inside_ = 0;
};
/// @throws ConfigError: batch_size is no multiple of 4, or no name.
void check(const WorkloadOptions& options);

/// One arm on a Trainer.
template <class Model, class Loss, class Source>
class TrainerRunner final : public Runner {
 public:
  TrainerRunner(Model model, Loss loss, Source source, const PolicySettings& settings, const WorkloadOptions& options)
      : loader_(std::move(source), {.batch_size = options.batch_size / settings.accumulate,
                                    .shuffle = true,
                                    .seed = options.seed,
                                    .drop_last = true,
                                    .workers = settings.workers,
                                    .prefetch = std::max(settings.prefetch, 2 * settings.accumulate)}),
        accumulate_(settings.accumulate),
        trainer_(model, make_adamw(model->parameters(), options.lr, settings.fused_optimizer), std::move(loss),
                 RuntimePrecision(settings.precision), RuntimeMemoryFormat{settings.channels_last},
                 Accumulate{settings.accumulate}, RuntimeRecompute(settings.recompute_every),
                 RuntimeClip(settings.clip), RuntimeSchedule{settings.cosine}, RuntimeAverage(settings.ema),
                 TrainerOptions{.device = options.device}) {}

  RoundResult run(int64_t steps) override {
    const MemoryMeter meter;
    RoundResult round;
    std::vector<StepResult> results;
    const Stopwatch all;
    for (int64_t i = 0; i < steps; ++i) {
      const Stopwatch step;
      next_window();
      round.data_wait_seconds += step.seconds();
      results.push_back(take_step());
      round.step_seconds.push_back(step.seconds());
    }
    wait_for(trainer_.device());
    round.seconds = all.seconds();
    round.steps = steps;
    for (const StepResult& result : results) add(round, result);
    round.peak_bytes = peak_bytes(meter, trainer_.device());
    note_freed_blocks(meter);
    return round;
  }

  /// Parts that a forward runs through saturate::call, without those inside another one. Takes a step.
  int64_t marked_parts() {
    PartCounter counter;
    const marks::Scope scope(trainer_.names(), &counter);
    next_window();
    take_step();
    return counter.parts() / accumulate_;
  }

  /// Takes two steps: the first one makes the optimizer's state.
  MemoryReport step_memory() {
    next_window();
    take_step();
    next_window();
    MemoryReport report = measure_memory(trainer_, window_);
    window_.clear();
    return report;
  }

  auto& trainer() { return trainer_; }

 private:
  using Loader = data::PrefetchLoader<Source>;

  void next_window() {
    for (int attempt = 0; window_.empty(); ++attempt) {
      if (attempt == 2) throw DataError("audit: the source gives no whole batch; choose a smaller batch size");
      if (windows_) windows_->next(window_);
      if (window_.size() < static_cast<std::size_t>(accumulate_)) {
        window_.clear();
        windows_.reset();
        windows_.emplace(loader_, accumulate_);  // the next epoch
      }
    }
  }

  StepResult take_step() {
    StepResult result = trainer_.step(window_);
    window_.clear();
    return result;
  }

  static void add(RoundResult& round, const StepResult& result) {
    round.samples += result.samples;
    const double targets = result.count.on_host() ? result.count.host : result.count.device.template item<double>();
    round.loss_count += targets;
    if (result.loss_sum.defined()) round.loss_sum += result.loss_sum.template item<double>();
  }

  Loader loader_;
  int64_t accumulate_;
  Trainer<Model, Loss, RuntimePrecision, RuntimeMemoryFormat, Accumulate, RuntimeRecompute, RuntimeClip,
          RuntimeSchedule, RuntimeAverage, TrainerOptions>
      trainer_;
  std::optional<saturate::detail::Windows<Loader>> windows_;
  std::vector<typename Loader::batch_type> window_;
};

template <class MakeModel, class Loss, class Source>
auto make_trainer_runner(const WorkloadOptions& options, const MakeModel& make_model, const Loss& loss,
                         const Source& source, const PolicySettings& settings) {
  seed(options.seed);
  auto model = make_model();
  using Model = decltype(model);
  return std::make_unique<TrainerRunner<Model, Loss, Source>>(std::move(model), loss, source, settings, options);
}

}  // namespace detail

/// One live training run with given settings, for programs that time combinations themselves.
template <class MakeModel, class Loss, class Source>
std::unique_ptr<Runner> make_runner(const WorkloadOptions& options, const MakeModel& make_model, const Loss& loss,
                                    const Source& source, const PolicySettings& settings) {
  return detail::make_trainer_runner(options, make_model, loss, source, settings);
}

/// @param make_model gives a new model holder or shared_ptr; the weights are those after torch::manual_seed(seed).
/// @param source of the training samples; copied into every arm (sources share their tensors).
/// @throws ConfigError no name, or a batch size that is no positive multiple of 4.
template <class MakeModel, class Loss, class Source>
Workload make_workload(WorkloadOptions options, MakeModel make_model, Loss loss, Source source) {
  detail::check(options);
  Workload workload;
  workload.name = options.name;
  workload.description = options.description;
  workload.batch_size = options.batch_size;
  workload.make = [=](const TacticSet& tactics) {
    return make_runner(options, make_model, loss, source, detail::settings_of(tactics, options.batch_size));
  };
  workload.make_with_batch_size = [=](int64_t batch_size) {
    WorkloadOptions other = options;
    other.batch_size = batch_size;
    return make_runner(other, make_model, loss, source, detail::settings_of({}, batch_size));
  };
  workload.lr_advice = [=](int64_t size) { return suggest_lr("AdamW", options.lr, size, options.batch_size); };
  workload.batch_sizes = options.batch_sizes;
  if (workload.batch_sizes.empty()) {
    const int64_t size = options.batch_size;
    workload.batch_sizes = {size / 4, size / 2, size, size * 2, size * 4};
  }
  const auto make_baseline = [=] {
    const PolicySettings settings = detail::settings_of({}, options.batch_size);
    return detail::make_trainer_runner(options, make_model, loss, source, settings);
  };
  workload.step_memory = [=] { return make_baseline()->step_memory(); };
  workload.memory_tactics = [=] { return detail::recompute_tactics(make_baseline()->marked_parts()); };
  workload.loader_ceiling = [=] {
    data::PrefetchLoader<Source> loader(
        source, {.batch_size = options.batch_size, .shuffle = true, .seed = options.seed, .workers = 1});
    const data::LoaderCeiling ceiling = data::loader_ceiling(loader, 0.5);
    return LoaderCeiling{ceiling.samples_per_second(), ceiling.spent.samples, ceiling.cause()};
  };
  return workload;
}

/// Fused optimizer, prefetching, channels-last, accumulation, BF16, thread counts, kept pages.
std::vector<Tactic> standard_tactics(const Workload& workload);

}  // namespace saturate::audit
