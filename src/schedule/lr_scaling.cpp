// SPDX-License-Identifier: Apache-2.0
#include "saturate/schedule/lr_scaling.hpp"

#include "saturate/error.hpp"

#include <c10/util/StringUtil.h>

#include <cmath>

namespace saturate {
namespace {

double ratio(double lr, int64_t batch, int64_t base_batch) {
  if (!std::isfinite(lr) || lr < 0) {
    throw ConfigError(c10::str("learning-rate scaling: lr is ", lr, "; give a finite value of 0 or more"));
  }
  if (batch < 1 || base_batch < 1) {
    throw ConfigError(c10::str("learning-rate scaling: from ", base_batch, " to ", batch,
                               " samples a step; give batches of 1 or more"));
  }
  return static_cast<double>(batch) / static_cast<double>(base_batch);
}

}  // namespace

double linear_scaling(double lr, int64_t batch, int64_t base_batch) { return lr * ratio(lr, batch, base_batch); }

double sqrt_scaling(double lr, int64_t batch, int64_t base_batch) {
  return lr * std::sqrt(ratio(lr, batch, base_batch));
}

std::string suggest_lr(std::string_view optimizer, double lr, int64_t batch, int64_t base_batch) {
  const double k = ratio(lr, batch, base_batch);
  if (batch == base_batch) return {};
  const std::string change =
      c10::str("The effective batch goes from ", base_batch, " to ", batch, " samples (", k, " times). ");
  if (optimizer.starts_with("SGD")) {
    const char* more = k > 1 ? " Warm up over the first epochs when the batch grows much." : "";
    return c10::str(change, "For SGD try lr = ", linear_scaling(lr, batch, base_batch), " instead of ", lr,
                    ": the linear rule (Goyal et al., 2017).", more);
  }
  return c10::str(change, "For ", optimizer, " try lr = ", sqrt_scaling(lr, batch, base_batch), " instead of ", lr,
                  ": the square-root rule (Malladi et al., 2022), with 1 - beta1 and 1 - beta2 times ", k,
                  " and eps divided by ", std::sqrt(k), ".");
}

}  // namespace saturate
