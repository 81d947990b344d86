// SPDX-License-Identifier: Apache-2.0
// The precision axis: Fp32 (default) and Bf16.
#pragma once

#include "saturate/policy.hpp"
#include "saturate/precision/autocast_scope.hpp"

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace saturate {

/// The dtype the model has: no autocast. The default.
struct Fp32 {
  using axis = saturate::axis::precision;

  struct Nothing {
    ~Nothing() {}  // not trivial: a named scope is no unused variable
  };
  Nothing scope(c10::DeviceType) const { return {}; }
};
static_assert(PrecisionPolicy<Fp32> && !ScalesGradients<Fp32>);

/// Matrix products and convolutions in bfloat16 by autocast, parameters and optimizer in their own dtype. bfloat16 has
/// the range of float32, so no gradient scaling is needed. Without hardware support (AVX512-BF16, AMX, a GPU since
/// Ampere) it is several times slower than Fp32.
struct Bf16 {
  using axis = saturate::axis::precision;

  AutocastScope scope(c10::DeviceType device) const { return {device, c10::ScalarType::BFloat16}; }
};
static_assert(PrecisionPolicy<Bf16> && !ScalesGradients<Bf16>);

}  // namespace saturate
