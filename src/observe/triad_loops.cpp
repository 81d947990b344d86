// SPDX-License-Identifier: Apache-2.0
#include "triad_loops.hpp"

#include "triad_loops_body.hpp"

namespace saturate::triad_loops {

#ifdef SATURATE_AVX2_LOOPS
extern const Loops avx2;  // triad_loops_avx2.cpp

const Loops& best() {
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  return has_avx2 ? avx2 : all_loops;
}
#else
const Loops& best() { return all_loops; }
#endif

}  // namespace saturate::triad_loops
