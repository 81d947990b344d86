// SPDX-License-Identifier: Apache-2.0
// The schedule axis: closed forms of the optimizer step. A factor multiplies every group's base learning rate.
#pragma once

#include "saturate/error.hpp"
#include "saturate/policy.hpp"

#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>

namespace saturate {

/// The base learning rate all the time. The default.
struct ConstantLr {
  using axis = saturate::axis::schedule;
  double factor(int64_t) const { return 1.0; }
};
static_assert(SchedulePolicy<ConstantLr>);

/// Linear warm-up, then half a cosine down to `final_factor` (Loshchilov and Hutter, "SGDR", 2017), and that from then
/// on:
///   step < warmup:  (step + 1) / warmup
///   else:           final + (1 - final) * (1 + cos(pi * (step - warmup) / (total - warmup))) / 2
/// Equal to LinearLR(start_factor = 1 / warmup, total_iters = warmup - 1), then CosineAnnealingLR(T_max = total -
/// warmup).
struct WarmupCosine {
  using axis = saturate::axis::schedule;

  int64_t warmup = 0;  ///< optimizer steps
  int64_t total = 1;   ///< optimizer steps, warm-up included
  double final_factor = 0;

  double factor(int64_t step) const {
    if (step < warmup) return static_cast<double>(step + 1) / static_cast<double>(warmup);
    if (step >= total) return final_factor;
    const double progress = static_cast<double>(step - warmup) / static_cast<double>(total - warmup);
    return final_factor + (1 - final_factor) * (1 + std::cos(std::numbers::pi * progress)) / 2;
  }
  /// @throws ConfigError warmup is negative or not below total.
  void validate() const {
    if (warmup >= 0 && warmup < total) return;
    throw ConfigError("WarmupCosine: warmup is " + std::to_string(warmup) + ", total " + std::to_string(total) +
                      "; give 0 <= warmup < total, in optimizer steps");
  }
};
static_assert(SchedulePolicy<WarmupCosine>);

}  // namespace saturate
