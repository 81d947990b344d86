// SPDX-License-Identifier: Apache-2.0
// The events of a run. A callback is any object with one or more of these members; `fit` calls them in this order:
//
//   on_fit_begin
//     on_epoch_begin
//       on_step        after every window, applied or not; tensors only, nothing has been read from the device
//       on_log         every `log_every` windows and at an epoch's end; values on the host
//       on_evaluate    after each evaluation (every `evaluate_every` windows and at an epoch's end)
//     on_epoch_end
//   on_fit_end         also when an exception leaves fit
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace saturate {

/// Where a run stands. Host values; with a GPU `step` may lag behind the device until the next log, event or save.
struct TrainerState {
  int64_t step = 0;     ///< optimizer steps applied
  int64_t window = 0;   ///< windows seen, skipped ones included
  int64_t epoch = 0;    ///< epochs finished
  int64_t samples = 0;  ///< samples seen
  bool stop = false;    ///< a callback sets it: fit ends after this window
};

struct FitBegin {
  TrainerState& state;
  int64_t epochs = 0;
  std::optional<int64_t> windows_per_epoch;  ///< unknown for streams
  int64_t parameters = 0;                    ///< elements, tied parameters once
};

struct EpochBegin {
  TrainerState& state;
};

/// One window. The tensors live on the device; reading one waits for it.
struct StepEvent {
  TrainerState& state;
  at::Tensor loss_sum;  ///< 0-dim, summed over the window's targets
  at::Tensor count;     ///< 0-dim number of targets; undefined when `host_count` holds it
  double host_count = 0;
  at::Tensor grad_norm;    ///< 0-dim, before clipping; undefined without clipping
  at::Tensor refused;      ///< 0-dim, 1 when the step was refused; undefined when no step can be
  bool evaluates = false;  ///< an evaluation follows, before the next window
};

struct LogEvent {
  TrainerState& state;
  double loss = 0;                  ///< mean over the targets since the last log; NaN when there were none
  double learning_rate = 0;         ///< of the first parameter group
  std::optional<double> grad_norm;  ///< of the last window
  double samples_per_second = 0;
  double data_wait_share = 0;            ///< share of wall time spent waiting for the loader, 0 to 1
  double step_seconds = 0;               ///< mean seconds a window since the last log
  std::optional<double> eta_seconds;     ///< to the end of fit
  std::optional<double> epoch_progress;  ///< 0 to 1
  int64_t refused = 0;                   ///< windows refused since the last log
  int64_t epochs = 0;                    ///< of this fit
};

/// Results of one evaluation: "loss", and what the loss or the caller measures besides ("accuracy").
using Metrics = std::map<std::string, double>;

struct EvaluateEvent {
  TrainerState& state;
  const Metrics& metrics;
};

struct EpochEnd {
  TrainerState& state;
  double seconds = 0;
};

struct FitEnd {
  TrainerState& state;
  double seconds = 0;
  bool failed = false;  ///< an exception is leaving fit
};

}  // namespace saturate
