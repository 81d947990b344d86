// SPDX-License-Identifier: Apache-2.0
// Times a run and gathers what its log shows. Used by fit.
#pragma once

#include "saturate/trainer/events.hpp"
#include "saturate/trainer/options.hpp"
#include "saturate/trainer/step_result.hpp"

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

namespace saturate::detail {

/// Keeps the windows' loss tensors until a log asks for them: one host read a log, none between.
class FitMeter {
 public:
  FitMeter(const FitOptions& options, std::optional<int64_t> windows_per_epoch);

  void begin_epoch(int64_t epoch_of_fit);
  void waited(double seconds) { interval_.wait += seconds, total_wait_ += seconds; }
  void trained(const StepResult& result);
  /// Time that belongs neither to data nor to training: evaluation, callbacks.
  void leave_out(double seconds) { interval_.left_out += seconds; }

  bool log_due() const;
  /// By the run's windows, not this fit's: one that goes on evaluates where the unbroken one would.
  bool evaluate_due(const TrainerState& state) const;
  bool anything_to_log() const { return !losses_.empty(); }
  bool out_of_windows() const { return options_.max_windows > 0 && windows_ >= options_.max_windows; }
  /// Reads the interval's tensors (the one host read) and starts a new interval.
  LogEvent log(TrainerState& state, double learning_rate);
  double seconds() const;
  double epoch_seconds() const;
  FitResult result() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Interval {
    Clock::time_point begin = Clock::now();
    double wait = 0, left_out = 0;
    int64_t samples = 0, windows = 0;
  };

  std::optional<int64_t> windows_left() const;

  FitOptions options_;
  std::optional<int64_t> windows_per_epoch_;
  Clock::time_point begin_ = Clock::now(), epoch_begin_ = begin_;
  Interval interval_;
  std::vector<at::Tensor> losses_, counts_, refusals_;
  at::Tensor last_norm_;
  double host_count_ = 0;
  double total_wait_ = 0, last_loss_;
  int64_t windows_ = 0, samples_ = 0, epoch_ = 0, epoch_windows_ = 0;
};

}  // namespace saturate::detail
