// SPDX-License-Identifier: Apache-2.0
#include "saturate/schedule/schedule_curve.hpp"

#include "saturate/error.hpp"

#include <c10/util/StringUtil.h>

#include <algorithm>

namespace saturate::detail {

std::vector<LrPoint> lr_points(const std::function<double(int64_t)>& factor, double lr, int64_t steps,
                               int64_t max_points) {
  if (steps < 1) throw ConfigError(c10::str("schedule_curve: steps is ", steps, "; give 1 or more"));
  if (max_points < 2) throw ConfigError(c10::str("schedule_curve: max_points is ", max_points, "; give 2 or more"));
  const int64_t count = std::min(steps, max_points);
  std::vector<LrPoint> points;
  points.reserve(static_cast<std::size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t step = count == 1 ? 0 : i * (steps - 1) / (count - 1);
    points.push_back({step, lr * factor(step)});
  }
  return points;
}

}  // namespace saturate::detail
