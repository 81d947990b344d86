// SPDX-License-Identifier: Apache-2.0
// The accumulation axis: one optimizer step for a window of several micro-batches.
#pragma once

#include "saturate/error.hpp"
#include "saturate/policy.hpp"

#include <cstdint>
#include <string>

namespace saturate {

/// One micro-batch a window. The default.
struct OneMicroBatch {
  using axis = saturate::axis::accumulation;
  int64_t micro_batches() const { return 1; }
};
static_assert(AccumulationPolicy<OneMicroBatch>);

/// `Accumulate{k}`: the gradient of k micro-batches as if they had been one batch, exactly (law 1): each sum of losses
/// is divided by the targets of the whole window, not by those of its micro-batch. The last window of an epoch may be
/// shorter; schedule, averages and step number advance once a window.
struct Accumulate {
  using axis = saturate::axis::accumulation;

  int64_t windows_of = 1;

  int64_t micro_batches() const { return windows_of; }
  void validate() const {
    if (windows_of >= 1) return;
    throw ConfigError("Accumulate: " + std::to_string(windows_of) + " micro-batches a window; give 1 or more");
  }
};
static_assert(AccumulationPolicy<Accumulate>);

}  // namespace saturate
