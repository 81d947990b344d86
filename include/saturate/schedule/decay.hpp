// SPDX-License-Identifier: Apache-2.0
// Schedules that rise or fall along one curve: linear, cosine, polynomial, exponential, inverse square root.
//
//   Trainer trainer(net, optimizer, loss, st::Warmup{200, st::CosineAnnealingLr{.total = 4800}});
//
// All count optimizer steps from 0, multiply the optimizer's own learning rate, and stay at their last value once they
// are through. docs/schedules.md has a table of them all beside Python's.
#pragma once

#include "saturate/policy.hpp"

#include <cstdint>

namespace saturate {

/// From `start_factor` to `end_factor` on a line: start + (end - start) * min(step, total) / total. Python's LinearLR
/// with total_iters = total.
struct LinearLr {
  using axis = saturate::axis::schedule;

  double start_factor = 1.0;
  double end_factor = 0.0;
  int64_t total = 1;  ///< optimizer steps from the one to the other

  double factor(int64_t step) const;
  /// @throws ConfigError a factor is negative or not finite, or total is below 1.
  void validate() const;
};
static_assert(SchedulePolicy<LinearLr>);

/// Half a cosine from 1 to `final_factor` (Loshchilov and Hutter, "SGDR", 2017): final + (1 - final) * (1 + cos(pi *
/// min(step, total) / total)) / 2. Python's CosineAnnealingLR with T_max = total, eta_min = lr * final_factor; unlike
/// that one it does not rise again afterwards.
struct CosineAnnealingLr {
  using axis = saturate::axis::schedule;

  int64_t total = 1;  ///< optimizer steps
  double final_factor = 0;

  double factor(int64_t step) const;
  /// @throws ConfigError total is below 1, or final_factor is negative or not finite.
  void validate() const;
};
static_assert(SchedulePolicy<CosineAnnealingLr>);

/// final + (1 - final) * (1 - min(step, total) / total) ^ power. Python's PolynomialLR with total_iters = total, where
/// final_factor is 0.
struct PolynomialLr {
  using axis = saturate::axis::schedule;

  int64_t total = 1;  ///< optimizer steps
  double power = 1.0;
  double final_factor = 0;

  double factor(int64_t step) const;
  /// @throws ConfigError total is below 1, power is not above 0, or final_factor is negative or not finite.
  void validate() const;
};
static_assert(SchedulePolicy<PolynomialLr>);

/// gamma ^ step, for ever. Python's ExponentialLR.
struct ExponentialLr {
  using axis = saturate::axis::schedule;

  double gamma = 1.0;  ///< a step

  double factor(int64_t step) const;
  /// @throws ConfigError gamma is not in (0, 1]: above, the rate would grow without bound.
  void validate() const;
};
static_assert(SchedulePolicy<ExponentialLr>);

/// Linear warm-up to 1, then the inverse square root (Vaswani et al., "Attention is all you need", 2017, scaled so that
/// its peak is 1): min((step + 1) / warmup, sqrt(warmup / (step + 1))).
struct InverseSqrtLr {
  using axis = saturate::axis::schedule;

  int64_t warmup = 1;  ///< optimizer steps

  double factor(int64_t step) const;
  /// @throws ConfigError warmup is below 1.
  void validate() const;
};
static_assert(SchedulePolicy<InverseSqrtLr>);

}  // namespace saturate
