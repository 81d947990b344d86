// SPDX-License-Identifier: Apache-2.0
// A linear warm-up before any other schedule:
//
//   st::Warmup{500, st::CosineAnnealingLr{.total = 9500}}
#pragma once

#include "saturate/error.hpp"
#include "saturate/policy.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace saturate {

struct EvaluateEvent;

/// The first `steps` steps rise on a line to what `inner` starts with: (step + 1) / steps * inner(0); then `inner` runs
/// from its own step 0 on. Its momentum, and what a ReduceLrOnPlateau has besides, pass through; during the warm-up the
/// momentum is that of inner's step 0.
///
/// Python: SequentialLR of LinearLR(start_factor = 1 / steps, total_iters = steps - 1) and the inner one, where that
/// starts with 1.
template <class Inner>
struct Warmup {
  using axis = saturate::axis::schedule;
  static_assert(SchedulePolicy<Inner>,
                "saturate: Warmup needs a schedule, with `double factor(int64_t step) const` (docs/schedules.md)");
  static_assert(
      !requires(const Inner& schedule) { schedule.group_factors(0); },
      "saturate: put Warmup into PerGroup, a schedule for each group, and not around it (docs/schedules.md)");

  /// @param steps optimizer steps, 0 for none.
  Warmup(int64_t steps, Inner inner) : steps(steps), inner(std::move(inner)) {}

  double factor(int64_t step) const {
    if (step >= steps) return inner.factor(step - steps);
    return static_cast<double>(step + 1) / static_cast<double>(steps) * inner.factor(0);
  }
  std::optional<double> momentum(int64_t step) const requires requires(const Inner& schedule) { schedule.momentum(0); }
  { return inner.momentum(step < steps ? 0 : step - steps); }

  /// @throws ConfigError steps is negative, or what inner refuses.
  void validate() const {
    if (steps < 0) throw ConfigError("Warmup: steps is " + std::to_string(steps) + "; give 0 or more optimizer steps");
    if constexpr (requires { inner.validate(); }) inner.validate();
  }

  void observe(double metric) requires requires(Inner& schedule) { schedule.observe(0.0); }
  { inner.observe(metric); }
  void on_evaluate(const EvaluateEvent& event) requires requires(Inner& schedule) { schedule.on_evaluate(event); }
  { inner.on_evaluate(event); }
  int64_t revision() const requires requires(const Inner& schedule) { schedule.revision(); }
  { return inner.revision(); }

  int64_t steps;
  Inner inner;
};

}  // namespace saturate
