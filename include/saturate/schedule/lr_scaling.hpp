// SPDX-License-Identifier: Apache-2.0
// What to do with the learning rate when the effective batch changes (batch size x micro-batches a window x ranks):
//
//   st::optim::SGD optimizer(net->parameters(), {.lr = st::linear_scaling(0.1, batch, 256), .momentum = 0.9});
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace saturate {

/// lr * batch / base_batch: for SGD (Goyal et al., "Accurate, large minibatch SGD", 2017), with a warm-up when the
/// batch grows much. @param lr what worked with `base_batch` samples a step.
/// @throws ConfigError a batch below 1, or an lr that is negative or not finite.
double linear_scaling(double lr, int64_t batch, int64_t base_batch);

/// lr * sqrt(batch / base_batch): for Adam and its kin (Malladi et al., "On the SDEs and scaling rules for adaptive
/// gradient algorithms", 2022); for SGD it keeps the variance of an update (Krizhevsky, "One weird trick", 2014).
/// @throws ConfigError as above.
double sqrt_scaling(double lr, int64_t batch, int64_t base_batch);

/// The advice in words when the effective batch goes from `base_batch` to `batch`: which rule, the new rate, whose rule
/// it is, and what else to change. Empty when the batch is the same.
/// @param optimizer the type as in OptimizerState ("SGD", "AdamW"): adaptive methods get the square root, SGD the line.
/// @throws ConfigError as above.
std::string suggest_lr(std::string_view optimizer, double lr, int64_t batch, int64_t base_batch);

}  // namespace saturate
