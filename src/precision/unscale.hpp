// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace saturate::detail {

/// values *= factor over dense memory. @return whether one of them was inf or NaN before.
bool multiply_and_check(float* values, int64_t n, float factor);
bool multiply_and_check(double* values, int64_t n, double factor);

}  // namespace saturate::detail
