// SPDX-License-Identifier: Apache-2.0
// Schedules that fall in stairs.
#pragma once

#include "saturate/policy.hpp"

#include <cstdint>
#include <vector>

namespace saturate {

/// Times `gamma` every `step_size` steps: gamma ^ floor(step / step_size). Python's StepLR.
struct StepLr {
  using axis = saturate::axis::schedule;

  int64_t step_size = 1;  ///< optimizer steps
  double gamma = 0.1;

  double factor(int64_t step) const;
  /// @throws ConfigError step_size is below 1, or gamma is not in (0, 1].
  void validate() const;
};
static_assert(SchedulePolicy<StepLr>);

/// Times `gamma` at each milestone: gamma ^ (milestones that are at most `step`). Python's MultiStepLR; a milestone
/// given twice counts twice.
struct MultiStepLr {
  using axis = saturate::axis::schedule;

  std::vector<int64_t> milestones;  ///< optimizer steps, in rising order
  double gamma = 0.1;

  double factor(int64_t step) const;
  /// @throws ConfigError no milestones, milestones that are negative or out of order, or gamma is not in (0, 1].
  void validate() const;
};
static_assert(SchedulePolicy<MultiStepLr>);

}  // namespace saturate
