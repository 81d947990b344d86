// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "saturate/policy.hpp"

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace saturate {

/// What happens when forward or backward of a window runs out of memory.
enum class OnOom {
  fail,  ///< the exception reaches the caller; parameters and optimizer state are as they were
  /// The window starts again (gradients cleared, buffers and random streams as before it) with micro-batches of half
  /// the size and twice as many of them, and later windows keep that size. The gradient is the same but for rounding,
  /// for losses that sum over samples, without batch statistics or random draws. Said in a warning. Every tensor of
  /// a batch has the samples along dimension 0. A micro-batch of one sample that does not fit fails.
  halve_microbatch,
};

/// Given to the Trainer among its policies.
struct TrainerOptions {
  using axis = saturate::axis::options;

  /// Where the model trains; default: CUDA when there is a GPU, else the CPU. The Trainer moves the model there.
  std::optional<c10::Device> device;
  /// Keep the step number on the device even where the host could know it. Default: on a GPU only.
  std::optional<bool> count_on_device;
  OnOom on_oom = OnOom::fail;
  /// Evaluate under c10::InferenceMode, which is faster than without gradients only. Off: a module may keep what it
  /// computes in evaluation, and train with it later.
  bool inference_mode = true;
};

/// @throws ConfigError (by fit) a negative value, or epochs below 1.
struct FitOptions {
  int64_t epochs = 1;
  int64_t log_every = 50;      ///< windows between on_log events; 0: at the end of each epoch only
  int64_t evaluate_every = 0;  ///< windows of the run between evaluations; 0: at the end of each epoch
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
