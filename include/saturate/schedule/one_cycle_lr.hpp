// SPDX-License-Identifier: Apache-2.0
// The one-cycle policy: the learning rate rises to its peak and falls to almost nothing, momentum the other way round.
//
//   Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.4, .momentum = 0.9}), loss,
//                   st::OneCycleLr{.total = 5000});   // 0.4 is the peak
#pragma once

#include "saturate/policy.hpp"

#include <cstdint>
#include <optional>

namespace saturate {

/// Smith and Topin, "Super-convergence", 2018, as Python's OneCycleLR has it. The optimizer's learning rate is the
/// peak (max_lr). With three phases the rate falls as fast as it rose, and then to its minimum.
struct OneCycleLr {
  using axis = saturate::axis::schedule;
  enum class Anneal { cos, linear };

  int64_t total = 1;              ///< optimizer steps; afterwards the rate stays at its minimum
  double pct_start = 0.3;         ///< share of the steps in which the rate rises
  Anneal anneal = Anneal::cos;    ///< the curve between two corners
  bool three_phase = false;       ///< rise, fall as long, then to the minimum; otherwise rise and fall
  double div_factor = 25;         ///< peak / first rate
  double final_div_factor = 1e4;  ///< first rate / last rate
  bool cycle_momentum = true;     ///< false: momentum() gives none, the optimizer keeps its own
  double base_momentum = 0.85;    ///< where the rate peaks
  double max_momentum = 0.95;     ///< at the start and the end

  double factor(int64_t step) const;
  /// What replaces the optimizer's momentum (beta1 of Adam) at this step; StepArgs::momentum takes it.
  std::optional<double> momentum(int64_t step) const;
  /// @throws ConfigError total is below 1, pct_start is not in [0, 1] (three phases: [0, 0.5]), a divisor is not above
  /// 0, or a momentum is not in [0, 1).
  void validate() const;

 private:
  double at(int64_t step, double low, double high, double last) const;
};
static_assert(SchedulePolicy<OneCycleLr>);

}  // namespace saturate
