// SPDX-License-Identifier: Apache-2.0
// The loop that memory bandwidth is measured with, compiled for vectors, one set for each instruction set.
#pragma once

#include <cstdint>

namespace saturate::triad_loops {

/// out[i] = b[i] + s * c[i] for i in [0, n), with ordinary stores: those that LibTorch's pointwise kernels use too.
struct Loops {
  void (*triad)(int64_t n, float s, const float* b, const float* c, float* out);
};

/// The fastest set that this machine runs.
const Loops& best();

}  // namespace saturate::triad_loops
