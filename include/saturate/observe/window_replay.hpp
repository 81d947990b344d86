// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace saturate {

/// A window of the Trainer that can be run again. Holds on to its batches.
struct WindowReplay {
  std::function<void()> run;                           ///< forward and backward, no update; gradients are left behind
  std::function<std::vector<at::Tensor>()> gradients;  ///< parallel to the optimizer's parameters; some undefined
  std::function<void()> clear;                         ///< clears the gradients
  std::function<void(const std::string&)> keep_fp32;   ///< makes an island; empty where the precision has none
  std::vector<at::Tensor> inputs, targets;
};

}  // namespace saturate
