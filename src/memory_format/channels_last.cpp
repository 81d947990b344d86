// SPDX-License-Identifier: Apache-2.0
#include "saturate/memory_format/channels_last.hpp"

#include "saturate/log.hpp"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

namespace saturate {
namespace {

// Not contiguous(ChannelsLast): with one channel a tensor is contiguous in both formats, stays as it is, and
// convolutions then read its strides as NCHW and give NCHW on to everything behind them. `to` writes the strides of
// NHWC.
at::Tensor restrided(const at::Tensor& tensor) {
  return tensor.to(tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/false, at::MemoryFormat::ChannelsLast);
}

}  // namespace

void ChannelsLast::convert(torch::nn::Module& module) const {
  const at::NoGradGuard no_grad;
  bool any = false;
  for (at::Tensor& param : module.parameters()) {
    if (param.dim() != 4) continue;
    any = true;
    // set_data keeps the tensor's identity: the optimizer and the module go on holding the same parameter.
    param.set_data(restrided(param));
    if (param.grad().defined()) param.mutable_grad() = restrided(param.grad());
  }
  if (!any) log::warn("ChannelsLast has no effect: the model has no 4-d parameters (convolution weights)");
}

at::Tensor ChannelsLast::input(const at::Tensor& tensor) const {
  return tensor.dim() == 4 ? restrided(tensor) : tensor;  // itself when it is channels-last already
}

}  // namespace saturate
