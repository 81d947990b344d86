// SPDX-License-Identifier: Apache-2.0
// The memory-format axis: how 4-d parameters and inputs lie in memory.
#pragma once

#include "saturate/policy.hpp"

#include <ATen/core/Tensor.h>

namespace saturate {

/// Leaves everything as it is. The default.
struct KeepFormat {
  using axis = saturate::axis::memory_format;
  void convert(torch::nn::Module&) const {}
  const at::Tensor& input(const at::Tensor& tensor) const { return tensor; }
};
static_assert(MemoryFormatPolicy<KeepFormat>);

/// NHWC: 4-d parameters (convolution weights) are laid out channels-last once, 4-d inputs on the way in; convolutions
/// then keep the format by themselves. Optimizer state follows its parameter. Values and shapes do not change.
struct ChannelsLast {
  using axis = saturate::axis::memory_format;
  void convert(torch::nn::Module& module) const;
  at::Tensor input(const at::Tensor& tensor) const;
};
static_assert(MemoryFormatPolicy<ChannelsLast>);

}  // namespace saturate
