// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "saturate/policy.hpp"

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace saturate {

/// Given to the Trainer among its policies.
struct TrainerOptions {
  using axis = saturate::axis::options;

  /// Where the model trains; default: CUDA when there is a GPU, else the CPU. The Trainer moves the model there.
  std::optional<c10::Device> device;
  /// Keep the step number on the device even where the host could know it. Default: on a GPU only.
  std::optional<bool> count_on_device;
};

/// @throws ConfigError (by fit) a negative value, or epochs below 1.
struct FitOptions {
  int64_t epochs = 1;
  int64_t log_every = 50;      ///< windows between on_log events; 0: at the end of each epoch only
  int64_t evaluate_every = 0;  ///< windows between evaluations; 0: at the end of each epoch
  int64_t max_windows = 0;     ///< stop after so many windows in this fit; 0: no limit

  void validate() const;
};

struct FitResult {
  int64_t windows = 0;
  int64_t steps = 0;  ///< optimizer steps applied
  int64_t samples = 0;
  double seconds = 0;
  double data_wait_seconds = 0;
  double loss = 0;       ///< mean over the targets of the last log interval; NaN when nothing was trained
  bool stopped = false;  ///< a callback or max_windows ended it early
};

}  // namespace saturate
