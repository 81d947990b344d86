// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace saturate {

/// Autocast on this thread while the object lives, for CPU and CUDA; usable alone around forward and the loss:
///
///   { AutocastScope autocast(torch::kCPU, torch::kBFloat16); loss = loss_fn(net->forward(x), y); }
///   loss.backward();
///
/// Scopes nest. Leaving one, by an exception too, brings back enabled, dtype and the weight cache's switch as they
/// were, and leaving the outermost clears the cache of low-precision weights, which would be stale after the
/// optimizer's step.
class AutocastScope {
 public:
  /// @param enabled false makes a region inside that stays in full precision.
  /// @throws ConfigError dtype is neither bfloat16 nor half.
  AutocastScope(c10::DeviceType device, c10::ScalarType dtype, bool enabled = true);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  c10::DeviceType device_;
  c10::ScalarType previous_dtype_;
  bool previous_enabled_;
  bool previous_cache_;
};

}  // namespace saturate
