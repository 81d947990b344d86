// SPDX-License-Identifier: Apache-2.0
// uint8 pixels to normalized floats, where the pixels are: send the raw bytes to the device (a quarter of the traffic),
// normalize there.
#pragma once

#include <ATen/core/Tensor.h>

namespace saturate::data {

/// float32 (x / 255 - mean) / std of every element, on the device and in the shape of `u8`, in one pass. The CPU and
/// the CUDA version round alike: the same bits as u8.to(at::kFloat).div(255).sub(mean).div(std). Not differentiable.
/// @throws ConfigError when std is not positive and finite, mean is not finite, or the device is CUDA and saturate was
/// built without nvcc; DataError when `u8` is not a dense uint8 tensor on the CPU or on a CUDA device.
at::Tensor normalize_u8(const at::Tensor& u8, double mean, double std);

}  // namespace saturate::data
