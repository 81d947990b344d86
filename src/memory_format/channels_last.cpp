// SPDX-License-Identifier: Apache-2.0
#include "saturate/memory_format/channels_last.hpp"

#include "saturate/log.hpp"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

namespace saturate {

void ChannelsLast::convert(torch::nn::Module& module) const {
  const at::NoGradGuard no_grad;
  bool any = false;
  for (at::Tensor& param : module.parameters()) {
    if (param.dim() != 4) continue;
    any = true;
    // set_data keeps the tensor's identity: the optimizer and the module go on holding the same parameter.
    param.set_data(param.contiguous(at::MemoryFormat::ChannelsLast));
    if (param.grad().defined()) param.mutable_grad() = param.grad().contiguous(at::MemoryFormat::ChannelsLast);
  }
  if (!any) log::warn("ChannelsLast has no effect: the model has no 4-d parameters (convolution weights)");
}

at::Tensor ChannelsLast::input(const at::Tensor& tensor) const {
  if (tensor.dim() != 4 || tensor.is_contiguous(at::MemoryFormat::ChannelsLast)) return tensor;
  return tensor.contiguous(at::MemoryFormat::ChannelsLast);
}

}  // namespace saturate
