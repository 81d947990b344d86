// SPDX-License-Identifier: Apache-2.0
// From float32 to bfloat16, up or down at random: 16 random bits are added below the last bit that stays.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace saturate::optim {

/// `narrow`, bfloat16 on the CPU, gets `wide`, float32, with the same strides and without gaps. One loop; the bits are
/// a function of `key` and the element's place.
void round_at_random(const at::Tensor& narrow, const at::Tensor& wide, uint64_t key);
/// The same on any device, by operators, with bits from `generator`.
void round_at_random(const at::Tensor& narrow, const at::Tensor& wide, const at::Generator& generator);

}  // namespace saturate::optim
