// SPDX-License-Identifier: Apache-2.0
// float32 to 16 bits and back in one pass, multiplied on the way. LibTorch takes a pass for each.
#pragma once

#include <ATen/core/Tensor.h>

namespace saturate::distributed::detail {

/// Whether the loops below are for these: `wide` dense float32 on the CPU, `dtype` float16 or bfloat16, and a processor
/// that converts (AVX2, F16C).
bool has_half_loops(const at::Tensor& wide, c10::ScalarType dtype);

/// `narrow` = wide * factor, rounded to the nearest. What is larger than `limit` (0: none) becomes that, with its sign;
/// a NaN stays one in bfloat16, and with a limit may become anything.
struct Narrowed {
  bool beyond = false;      ///< something was larger than the limit
  bool not_finite = false;  ///< there was an inf or NaN; looked for with a limit only
};
Narrowed narrow(const at::Tensor& wide, const at::Tensor& narrow, double factor, double limit = 0);

/// wide = narrow * factor.
void widen(const at::Tensor& narrow, const at::Tensor& wide, double factor);

}  // namespace saturate::distributed::detail
