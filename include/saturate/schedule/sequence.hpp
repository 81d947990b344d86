// SPDX-License-Identifier: Apache-2.0
// Schedules one after another, and one for each parameter group.
//
//   st::Sequence{.schedules = {st::LinearLr{.start_factor = 0.1, .end_factor = 1, .total = 100}, st::ConstantLr{},
//                              st::CosineAnnealingLr{.total = 900}},
//                .milestones = {100, 600}}
//
//   st::PerGroup{.schedules = {st::CosineAnnealingLr{.total = 1000}, st::ConstantLr{}}}   // two parameter groups
#pragma once

#include "saturate/policy.hpp"
#include "saturate/schedule/any_schedule.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace saturate {

/// From milestones[i] on, schedules[i + 1] runs, each counting from its own step 0. Python's SequentialLR.
struct Sequence {
  using axis = saturate::axis::schedule;

  std::vector<AnySchedule> schedules;
  std::vector<int64_t> milestones;  ///< optimizer steps, strictly rising; one fewer than schedules

  double factor(int64_t step) const;
  /// That of the schedule that runs, where it has one.
  std::optional<double> momentum(int64_t step) const;
  /// @throws ConfigError no schedules, milestones that are not one fewer, not above 0 or out of order; or what a
  /// schedule refuses.
  void validate() const;
};
static_assert(SchedulePolicy<Sequence>);

/// One schedule for each parameter group of the optimizer, in the groups' order. Each multiplies its own group's
/// learning rate. LambdaLR with a list of functions is Python's nearest.
struct PerGroup {
  using axis = saturate::axis::schedule;

  std::vector<AnySchedule> schedules;

  /// Of group 0.
  double factor(int64_t step) const { return factor(step, 0); }
  /// @throws ConfigError there is no such group.
  double factor(int64_t step, std::size_t group) const;
  /// Of all groups.
  std::vector<double> group_factors(int64_t step) const;
  /// @throws ConfigError an optimizer with `groups` groups does not fit.
  void check_groups(std::size_t groups) const;
  /// @throws ConfigError no schedules, or what one of them refuses.
  void validate() const;
};
static_assert(SchedulePolicy<PerGroup>);

}  // namespace saturate
