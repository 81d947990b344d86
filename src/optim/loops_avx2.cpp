// SPDX-License-Identifier: Apache-2.0
// Compiled for AVX2, without FMA: the same bits as the other set.
#include "loops_body.hpp"

namespace saturate::optim::loops {

extern const Loops<float> avx2_float;
extern const Loops<double> avx2_double;
const Loops<float> avx2_float = all_loops<float>;
const Loops<double> avx2_double = all_loops<double>;

}  // namespace saturate::optim::loops
