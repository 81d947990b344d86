// SPDX-License-Identifier: Apache-2.0
// A schedule's learning rate over the steps, to be plotted:
//
//   report.lr_curve = {"warm-up, then a cosine", st::schedule_curve(schedule, 1e-3, 5000)};
#pragma once

#include "saturate/policy.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace saturate {

struct LrPoint {
  int64_t step = 0;
  double lr = 0;
};

/// A title and the points, in the order of their steps.
struct LrCurve {
  std::string title;
  std::vector<LrPoint> points;
};

namespace detail {
std::vector<LrPoint> lr_points(const std::function<double(int64_t)>& factor, double lr, int64_t steps,
                               int64_t max_points);
}

/// At most `max_points` of the steps 0 to steps - 1, evenly spaced, the first and the last among them.
/// @param schedule anything with `double factor(int64_t step) const`. @param lr the optimizer's learning rate.
/// @throws ConfigError steps is below 1, or max_points below 2.
template <SchedulePolicy Schedule>
std::vector<LrPoint> schedule_curve(const Schedule& schedule, double lr, int64_t steps, int64_t max_points = 400) {
  return detail::lr_points([&](int64_t step) { return schedule.factor(step); }, lr, steps, max_points);
}

}  // namespace saturate
