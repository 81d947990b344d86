// SPDX-License-Identifier: Apache-2.0
// A schedule of any type, for lists of them (Sequence, PerGroup).
#pragma once

#include "saturate/policy.hpp"

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace saturate {

/// Holds a closed-form schedule by value; copies share it, since it cannot change. A schedule that changes by what it
/// observes (ReduceLrOnPlateau) is none: give it to the Trainer itself, inside Warmup or alone.
class AnySchedule {
 public:
  using axis = saturate::axis::schedule;

  template <class Schedule>
  requires(SchedulePolicy<Schedule> && !std::same_as<Schedule, AnySchedule>)
      AnySchedule(Schedule schedule) {  // implicit: lists of schedules read as lists
    static_assert(
        !requires { schedule.revision(); },
        "saturate: a schedule that changes by what it observes cannot stand in a list of schedules; give it to the "
        "Trainer alone or inside Warmup (docs/schedules.md#plateau)");
    static_assert(
        !requires { schedule.group_factors(0); },
        "saturate: put Sequence into PerGroup, a schedule for each group, and not around it (docs/schedules.md)");
    const auto held = std::make_shared<const Schedule>(std::move(schedule));
    factor_ = [held](int64_t step) { return held->factor(step); };
    if constexpr (requires { held->momentum(0); }) momentum_ = [held](int64_t step) { return held->momentum(step); };
    if constexpr (requires { held->validate(); }) validate_ = [held] { held->validate(); };
  }

  double factor(int64_t step) const { return factor_(step); }
  /// None when the schedule has none.
  std::optional<double> momentum(int64_t step) const { return momentum_ ? momentum_(step) : std::nullopt; }
  /// @throws ConfigError what the schedule refuses.
  void validate() const {
    if (validate_) validate_();
  }

 private:
  std::function<double(int64_t)> factor_;
  std::function<std::optional<double>(int64_t)> momentum_;
  std::function<void()> validate_;
};
static_assert(SchedulePolicy<AnySchedule>);

}  // namespace saturate
