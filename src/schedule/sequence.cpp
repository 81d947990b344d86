// SPDX-License-Identifier: Apache-2.0
#include "saturate/schedule/sequence.hpp"

#include "saturate/error.hpp"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <utility>

namespace saturate {
namespace {

// Index of the schedule that runs, and its own step.
std::pair<std::size_t, int64_t> running(const std::vector<int64_t>& milestones, int64_t step) {
  const auto next = std::upper_bound(milestones.begin(), milestones.end(), step);
  const auto index = static_cast<std::size_t>(next - milestones.begin());
  return {index, index == 0 ? step : step - milestones[index - 1]};
}

}  // namespace

double Sequence::factor(int64_t step) const {
  const auto [index, own_step] = running(milestones, step);
  return schedules[index].factor(own_step);
}

std::optional<double> Sequence::momentum(int64_t step) const {
  const auto [index, own_step] = running(milestones, step);
  return schedules[index].momentum(own_step);
}

void Sequence::validate() const {
  if (schedules.empty()) throw ConfigError("Sequence: no schedules are given; give at least one");
  if (milestones.size() + 1 != schedules.size()) {
    throw ConfigError(c10::str("Sequence: ", schedules.size(), " schedules and ", milestones.size(),
                               " milestones; give one milestone fewer than schedules"));
  }
  int64_t before = 0;
  for (const int64_t milestone : milestones) {
    if (milestone <= before) {
      throw ConfigError(c10::str("Sequence: the milestones are ", c10::Join(", ", milestones),
                                 "; give optimizer steps above 0, each above the one before"));
    }
    before = milestone;
  }
  for (const AnySchedule& schedule : schedules) schedule.validate();
}

double PerGroup::factor(int64_t step, std::size_t group) const {
  if (group >= schedules.size()) {
    throw ConfigError(c10::str("PerGroup: there is no schedule for group ", group, ", only ", schedules.size(),
                               " schedules; give one for each of the optimizer's groups"));
  }
  return schedules[group].factor(step);
}

std::vector<double> PerGroup::group_factors(int64_t step) const {
  std::vector<double> factors;
  factors.reserve(schedules.size());
  for (const AnySchedule& schedule : schedules) factors.push_back(schedule.factor(step));
  return factors;
}

void PerGroup::check_groups(std::size_t groups) const {
  if (groups == schedules.size()) return;
  throw ConfigError(c10::str("PerGroup: ", schedules.size(), " schedules for an optimizer with ", groups,
                             " parameter groups; give one for each group, in their order"));
}

void PerGroup::validate() const {
  if (schedules.empty()) throw ConfigError("PerGroup: no schedules are given; give one for each parameter group");
  for (const AnySchedule& schedule : schedules) schedule.validate();
}

}  // namespace saturate
