// SPDX-License-Identifier: Apache-2.0
// Compiled with -O3, so that both compilers make vector code of the loops.
#include "unscale.hpp"

#include <cstring>

namespace saturate::detail {
namespace {

// Inf and NaN have all bits of the exponent set. Bits, not comparisons: they stay right whatever the compiler may
// assume about floating-point numbers, and OR needs no order.
template <class Bits, class T>
bool run(T* __restrict values, int64_t n, T factor, Bits exponent) {
  Bits found = 0;
  for (int64_t i = 0; i < n; ++i) {
    Bits bits;
    std::memcpy(&bits, &values[i], sizeof bits);
    found |= static_cast<Bits>((bits & exponent) == exponent);
    values[i] *= factor;
  }
  return found != 0;
}

}  // namespace

bool multiply_and_check(float* values, int64_t n, float factor) {
  return run<uint32_t>(values, n, factor, 0x7f800000U);
}
bool multiply_and_check(double* values, int64_t n, double factor) {
  return run<uint64_t>(values, n, factor, 0x7ff0000000000000U);
}

}  // namespace saturate::detail
