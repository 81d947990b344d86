// SPDX-License-Identifier: Apache-2.0
#include "saturate/schedule/step_lr.hpp"

#include "saturate/error.hpp"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>

namespace saturate {
namespace {

void check_gamma(const char* schedule, double gamma) {
  if (gamma > 0 && gamma <= 1) return;
  throw ConfigError(c10::str(schedule, ": gamma is ", gamma, "; give a value above 0 and at most 1"));
}

}  // namespace

double StepLr::factor(int64_t step) const { return std::pow(gamma, static_cast<double>(step / step_size)); }

void StepLr::validate() const {
  if (step_size < 1) {
    throw ConfigError(c10::str("StepLr: step_size is ", step_size, "; give 1 or more optimizer steps"));
  }
  check_gamma("StepLr", gamma);
}

double MultiStepLr::factor(int64_t step) const {
  const auto passed = std::upper_bound(milestones.begin(), milestones.end(), step) - milestones.begin();
  return std::pow(gamma, static_cast<double>(passed));
}

void MultiStepLr::validate() const {
  if (milestones.empty()) throw ConfigError("MultiStepLr: no milestones are given; ConstantLr has none");
  if (milestones.front() < 0 || !std::is_sorted(milestones.begin(), milestones.end())) {
    throw ConfigError(c10::str("MultiStepLr: the milestones are ", c10::Join(", ", milestones),
                               "; give optimizer steps of 0 or more, in rising order"));
  }
  check_gamma("MultiStepLr", gamma);
}

}  // namespace saturate
