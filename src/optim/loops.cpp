// SPDX-License-Identifier: Apache-2.0
#include "loops.hpp"

#include "loops_body.hpp"

namespace saturate::optim::loops {

#ifdef SATURATE_AVX2_LOOPS
// loops_avx2.cpp
extern const Loops<float> avx2_float;
extern const Loops<double> avx2_double;

namespace {

bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2");
  return has;
}

}  // namespace
#endif

template <>
const Loops<float>& portable<float>() {
  return all_loops<float>;
}
template <>
const Loops<double>& portable<double>() {
  return all_loops<double>;
}

template <>
const Loops<float>& best<float>() {
#ifdef SATURATE_AVX2_LOOPS
  if (has_avx2()) return avx2_float;
#endif
  return portable<float>();
}
template <>
const Loops<double>& best<double>() {
#ifdef SATURATE_AVX2_LOOPS
  if (has_avx2()) return avx2_double;
#endif
  return portable<double>();
}

}  // namespace saturate::optim::loops
