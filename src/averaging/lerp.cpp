// SPDX-License-Identifier: Apache-2.0
// Compiled with -O3, so that both compilers make vector code of the loops.
#include "lerp.hpp"

namespace saturate::detail {
namespace {

template <class A, class P>
void run(A* __restrict average, const P* __restrict live, int64_t n, A weight) {
  if (weight < A(0.5)) {
    for (int64_t i = 0; i < n; ++i) average[i] += weight * (static_cast<A>(live[i]) - average[i]);
    return;
  }
  const A rest = 1 - weight;
  for (int64_t i = 0; i < n; ++i) {
    const A target = static_cast<A>(live[i]);
    average[i] = target - (target - average[i]) * rest;
  }
}

}  // namespace

void lerp(float* average, const float* live, int64_t n, float weight) { run(average, live, n, weight); }
void lerp(double* average, const double* live, int64_t n, double weight) { run(average, live, n, weight); }
void lerp(float* average, const c10::BFloat16* live, int64_t n, float weight) { run(average, live, n, weight); }

}  // namespace saturate::detail
