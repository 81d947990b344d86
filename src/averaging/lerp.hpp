// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

namespace saturate::detail {

/// average += weight * (live - average) over dense memory, as at::lerp computes it: exact for weights 0 and 1.
void lerp(float* average, const float* live, int64_t n, float weight);
void lerp(double* average, const double* live, int64_t n, double weight);
void lerp(float* average, const c10::BFloat16* live, int64_t n, float weight);

}  // namespace saturate::detail
