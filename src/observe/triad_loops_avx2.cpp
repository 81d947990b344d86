// SPDX-License-Identifier: Apache-2.0
// Compiled for AVX2.
#include "triad_loops_body.hpp"

namespace saturate::triad_loops {

extern const Loops avx2;
const Loops avx2 = all_loops;

}  // namespace saturate::triad_loops
