// SPDX-License-Identifier: Apache-2.0
#include "saturate/trainer/callbacks/early_stop.hpp"

#include <cmath>
#include <utility>

#include "saturate/error.hpp"
#include "saturate/log.hpp"

namespace saturate {
namespace {

std::string names_of(const Metrics& metrics) {
  if (metrics.empty()) return "none";
  std::string names;
  for (const auto& entry : metrics) names += (names.empty() ? "" : ", ") + entry.first;
  return names;
}

}  // namespace

EarlyStop::EarlyStop(EarlyStopOptions options) : options_(std::move(options)) {
  if (options_.metric.empty()) throw ConfigError("EarlyStop: the metric has no name; give one, such as \"loss\".");
  if (options_.patience < 1) {
    throw ConfigError("EarlyStop: a patience of " + std::to_string(options_.patience) +
                      " would end every run; give at least 1 evaluation.");
  }
  if (!(std::isfinite(options_.min_delta) && options_.min_delta >= 0)) {
    throw ConfigError("EarlyStop: a min_delta of " + std::to_string(options_.min_delta) +
                      " cannot be; give a finite number of 0 or more.");
  }
}

void EarlyStop::on_fit_begin(const FitBegin&) {
  best_.reset();
  best_step_.reset();
  waited_ = 0;
  stopped_ = false;
}

bool EarlyStop::is_better(double value) const {
  if (std::isnan(value)) return false;
  if (!best_) return true;
  return options_.better == Better::lower ? value < *best_ - options_.min_delta : value > *best_ + options_.min_delta;
}

void EarlyStop::on_evaluate(const EvaluateEvent& event) {
  const auto found = event.metrics.find(options_.metric);
  if (found == event.metrics.end()) {
    throw ConfigError("EarlyStop: the evaluation does not measure \"" + options_.metric +
                      "\"; it measures: " + names_of(event.metrics) + ".");
  }
  if (is_better(found->second)) {
    best_ = found->second;
    best_step_ = event.state.step;
    waited_ = 0;
    return;
  }
  if (++waited_ < options_.patience || stopped_) return;
  stopped_ = true;
  event.state.stop = true;
  log::info("EarlyStop: " + options_.metric + " was no better in " + std::to_string(waited_) +
            " evaluations; the run ends at step " + std::to_string(event.state.step) + ".");
}

}  // namespace saturate
