// SPDX-License-Identifier: Apache-2.0
// Norms of tensors in host memory, summed in float64 as they are read. LibTorch's kernels make a float64 copy of a
// tensor before they sum it in float64.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace saturate::detail {

/// Whether the functions below read it: float64, float32, float16 or bfloat16 in host memory, in any strides.
bool in_readable_host_memory(const at::Tensor& tensor);

/// The p-norm over the elements of all tensors, p finite and above 0. inf and NaN come through.
double host_norm(const std::vector<at::Tensor>& tensors, double p);

/// Scales each unit of `grad` (a row along dimension 0; a whole tensor of one dimension or none) by
/// min(1, clip_factor * max(|unit of parameter|, eps) / max(|unit of grad|, 1e-6)).
/// @return the sum of squares of grad before.
/// @throws c10::Error, with nothing changed, when elements of `grad` share memory, as LibTorch's mul_ does.
double clip_units_on_host(at::Tensor& grad, const at::Tensor& parameter, double clip_factor, double eps);

}  // namespace saturate::detail
