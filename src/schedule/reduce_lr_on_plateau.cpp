// SPDX-License-Identifier: Apache-2.0
#include "saturate/schedule/reduce_lr_on_plateau.hpp"

#include "saturate/error.hpp"
#include "saturate/trainer/events.hpp"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace saturate {
namespace {

void check(const PlateauOptions& options) {
  const auto complain = [](const char* name, const auto& value, const char* wanted) {
    throw ConfigError(c10::str("ReduceLrOnPlateau: ", name, " is ", value, "; give ", wanted));
  };
  const auto is_positive = [](double value) { return std::isfinite(value) && value >= 0; };
  if (options.metric.empty()) {
    throw ConfigError("ReduceLrOnPlateau: the metric has no name; give one, such as \"loss\"");
  }
  if (!(options.reduce_by > 0 && options.reduce_by < 1)) {
    complain("reduce_by", options.reduce_by, "a value above 0 and below 1");
  }
  if (options.patience < 0) complain("patience", options.patience, "0 or more observations");
  if (!is_positive(options.threshold)) complain("threshold", options.threshold, "a finite value of 0 or more");
  if (options.threshold_mode == PlateauThreshold::rel && options.threshold >= 1) {
    complain("threshold", options.threshold, "a share of the best value below 1, or PlateauThreshold::abs");
  }
  if (options.cooldown < 0) complain("cooldown", options.cooldown, "0 or more observations");
  if (!(options.min_factor >= 0 && options.min_factor <= 1)) {
    complain("min_factor", options.min_factor, "a value in [0, 1]");
  }
  if (!is_positive(options.eps)) complain("eps", options.eps, "a finite value of 0 or more");
}

std::string names_of(const Metrics& metrics) {
  std::string names;
  for (const auto& entry : metrics) names += (names.empty() ? "" : ", ") + entry.first;
  return names.empty() ? "nothing" : names;
}

}  // namespace

ReduceLrOnPlateau::ReduceLrOnPlateau(PlateauOptions options) : options_(std::move(options)) { check(options_); }

bool ReduceLrOnPlateau::is_better(double metric) const {
  if (std::isnan(metric)) return false;
  const double sign = options_.mode == PlateauMode::min ? -1 : 1;
  if (std::isnan(state_.best)) return !std::isinf(metric) || metric * sign > 0;
  const bool relative = options_.threshold_mode == PlateauThreshold::rel;
  const double bar = relative ? state_.best * (1 + sign * options_.threshold) : state_.best + sign * options_.threshold;
  return options_.mode == PlateauMode::min ? metric < bar : metric > bar;
}

void ReduceLrOnPlateau::observe(double metric) {
  ++state_.observations;
  if (is_better(metric)) {
    state_.best = metric;
    state_.bad = 0;
  } else {
    ++state_.bad;
  }
  if (state_.cooldown > 0) {
    --state_.cooldown;
    state_.bad = 0;
  }
  if (state_.bad <= options_.patience) return;
  reduce();
  state_.cooldown = options_.cooldown;
  state_.bad = 0;
}

void ReduceLrOnPlateau::reduce() {
  const double reduced = std::max(state_.factor * options_.reduce_by, options_.min_factor);
  if (!(state_.factor - reduced > options_.eps)) return;
  state_.factor = reduced;
  ++revision_;
}

void ReduceLrOnPlateau::on_evaluate(const EvaluateEvent& event) {
  const auto found = event.metrics.find(options_.metric);
  if (found == event.metrics.end()) {
    throw ConfigError(c10::str("ReduceLrOnPlateau: the evaluation does not measure \"", options_.metric,
                               "\"; it measures: ", names_of(event.metrics)));
  }
  observe(found->second);
}

void ReduceLrOnPlateau::load_state(const PlateauState& state) {
  if (!(state.factor >= 0 && state.factor <= 1)) {
    throw StateError(c10::str("ReduceLrOnPlateau: the saved factor is ", state.factor,
                              ", which is not in [0, 1]; nothing was loaded"));
  }
  if (state.bad < 0 || state.cooldown < 0 || state.observations < 0) {
    throw StateError("ReduceLrOnPlateau: a saved count is negative; nothing was loaded");
  }
  if (state.factor != state_.factor) ++revision_;
  state_ = state;
}

}  // namespace saturate
