// SPDX-License-Identifier: Apache-2.0
#include "token_loops.hpp"

#include "token_loops_body.hpp"

namespace saturate::data::token_loops {

#ifdef SATURATE_AVX2_LOOPS
// token_loops_avx2.cpp
extern const Loops<uint8_t> avx2_8;
extern const Loops<uint16_t> avx2_16;
extern const Loops<uint32_t> avx2_32;
#endif

namespace {

template <class T>
const Loops<T>& choose([[maybe_unused]] const Loops<T>& avx2) {
#ifdef SATURATE_AVX2_LOOPS
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2) return avx2;
#endif
  return all_loops<T>;
}

#ifndef SATURATE_AVX2_LOOPS
constexpr const Loops<uint8_t>& avx2_8 = all_loops<uint8_t>;
constexpr const Loops<uint16_t>& avx2_16 = all_loops<uint16_t>;
constexpr const Loops<uint32_t>& avx2_32 = all_loops<uint32_t>;
#endif

}  // namespace

template <>
const Loops<uint8_t>& best<uint8_t>() {
  return choose(avx2_8);
}
template <>
const Loops<uint16_t>& best<uint16_t>() {
  return choose(avx2_16);
}
template <>
const Loops<uint32_t>& best<uint32_t>() {
  return choose(avx2_32);
}

}  // namespace saturate::data::token_loops
