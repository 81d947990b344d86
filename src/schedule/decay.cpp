// SPDX-License-Identifier: Apache-2.0
#include "saturate/schedule/decay.hpp"

#include "saturate/error.hpp"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace saturate {
namespace {

double progress(int64_t step, int64_t total) {
  return static_cast<double>(std::min(step, total)) / static_cast<double>(total);
}

void check_total(const char* schedule, int64_t total) {
  if (total >= 1) return;
  throw ConfigError(c10::str(schedule, ": total is ", total, "; give 1 or more optimizer steps"));
}

void check_factor(const char* schedule, const char* name, double value) {
  if (std::isfinite(value) && value >= 0) return;
  throw ConfigError(c10::str(schedule, ": ", name, " is ", value, "; give a finite factor of 0 or more"));
}

}  // namespace

double LinearLr::factor(int64_t step) const {
  return start_factor + (end_factor - start_factor) * progress(step, total);
}

void LinearLr::validate() const {
  check_factor("LinearLr", "start_factor", start_factor);
  check_factor("LinearLr", "end_factor", end_factor);
  check_total("LinearLr", total);
}

double CosineAnnealingLr::factor(int64_t step) const {
  if (step >= total) return final_factor;
  return final_factor + (1 - final_factor) * (1 + std::cos(std::numbers::pi * progress(step, total))) / 2;
}

void CosineAnnealingLr::validate() const {
  check_total("CosineAnnealingLr", total);
  check_factor("CosineAnnealingLr", "final_factor", final_factor);
}

double PolynomialLr::factor(int64_t step) const {
  return final_factor + (1 - final_factor) * std::pow(1 - progress(step, total), power);
}

void PolynomialLr::validate() const {
  check_total("PolynomialLr", total);
  check_factor("PolynomialLr", "final_factor", final_factor);
  if (std::isfinite(power) && power > 0) return;
  throw ConfigError(c10::str("PolynomialLr: power is ", power, "; give a finite value above 0"));
}

double ExponentialLr::factor(int64_t step) const { return std::pow(gamma, static_cast<double>(step)); }

void ExponentialLr::validate() const {
  if (gamma > 0 && gamma <= 1) return;
  throw ConfigError(c10::str("ExponentialLr: gamma is ", gamma, "; give a value above 0 and at most 1"));
}

double InverseSqrtLr::factor(int64_t step) const {
  const auto at = static_cast<double>(step + 1), peak = static_cast<double>(warmup);
  return at < peak ? at / peak : std::sqrt(peak / at);
}

void InverseSqrtLr::validate() const {
  if (warmup >= 1) return;
  throw ConfigError(c10::str("InverseSqrtLr: warmup is ", warmup, "; give 1 or more optimizer steps"));
}

}  // namespace saturate
