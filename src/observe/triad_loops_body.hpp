// SPDX-License-Identifier: Apache-2.0
// The body of triad_loops.hpp, in a namespace without a name: included by one file for each instruction set, and
// nothing of one may be linked into another.
#pragma once

#include "triad_loops.hpp"

namespace saturate::triad_loops {
namespace {

void triad(int64_t n, float s, const float* __restrict b, const float* __restrict c, float* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] = b[i] + s * c[i];
}

constexpr Loops all_loops{triad};

}  // namespace
}  // namespace saturate::triad_loops
