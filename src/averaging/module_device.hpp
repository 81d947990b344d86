// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

namespace saturate::detail {

/// Of the first parameter or buffer; the CPU when there is none.
inline c10::Device device_of(const torch::nn::Module& module) {
  for (const at::Tensor& tensor : module.parameters()) return tensor.device();
  for (const at::Tensor& tensor : module.buffers()) {
    if (tensor.defined()) return tensor.device();
  }
  return c10::kCPU;
}

}  // namespace saturate::detail
