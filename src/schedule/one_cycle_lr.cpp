// SPDX-License-Identifier: Apache-2.0
#include "saturate/schedule/one_cycle_lr.hpp"

#include "saturate/error.hpp"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

namespace saturate {
namespace {

struct Phase {
  double end;  // the step at which `to` is reached
  double from, to;
};

double between(OneCycleLr::Anneal anneal, double from, double to, double share) {
  if (anneal == OneCycleLr::Anneal::linear) return (to - from) * share + from;
  return to + (from - to) / 2 * (std::cos(std::numbers::pi * share) + 1);
}

}  // namespace

// From `low` to `high` and on to `last`, which is `low` again on the way with three phases. The corners are fractions
// of a step, as Python's are.
double OneCycleLr::at(int64_t step, double low, double high, double last) const {
  const auto steps = static_cast<double>(total);
  const double rise = pct_start * steps - 1;
  const std::array<Phase, 3> two{{{rise, low, high}, {steps - 1, high, last}, {steps - 1, last, last}}};
  const std::array<Phase, 3> three{{{rise, low, high}, {2 * pct_start * steps - 2, high, low}, {steps - 1, low, last}}};
  const auto now = static_cast<double>(std::min(step, total - 1));
  double begin = 0;
  for (const Phase& phase : three_phase ? three : two) {
    if (now <= phase.end) {
      // A phase without length is over where it begins.
      return phase.end > begin ? between(anneal, phase.from, phase.to, (now - begin) / (phase.end - begin)) : phase.to;
    }
    begin = phase.end;
  }
  return last;
}

double OneCycleLr::factor(int64_t step) const { return at(step, 1 / div_factor, 1, 1 / div_factor / final_div_factor); }

std::optional<double> OneCycleLr::momentum(int64_t step) const {
  if (!cycle_momentum) return std::nullopt;
  return at(step, max_momentum, base_momentum, max_momentum);
}

void OneCycleLr::validate() const {
  const auto complain = [](const char* name, double value, const char* wanted) {
    throw ConfigError(c10::str("OneCycleLr: ", name, " is ", value, "; give ", wanted));
  };
  const auto is_momentum = [](double value) { return value >= 0 && value < 1; };
  const double most = three_phase ? 0.5 : 1.0;
  if (total < 1) complain("total", static_cast<double>(total), "1 or more optimizer steps");
  if (!(pct_start >= 0 && pct_start <= most)) {
    complain("pct_start", pct_start,
             three_phase ? "a share in [0, 0.5], since it is spent twice" : "a share in [0, 1]");
  }
  if (!(std::isfinite(div_factor) && div_factor > 0)) complain("div_factor", div_factor, "a finite value above 0");
  if (!(std::isfinite(final_div_factor) && final_div_factor > 0)) {
    complain("final_div_factor", final_div_factor, "a finite value above 0");
  }
  if (!is_momentum(base_momentum)) complain("base_momentum", base_momentum, "a value in [0, 1)");
  if (!is_momentum(max_momentum)) complain("max_momentum", max_momentum, "a value in [0, 1)");
}

}  // namespace saturate
