// SPDX-License-Identifier: Apache-2.0
#include "half_loops.hpp"

#include <ATen/Parallel.h>

#include <atomic>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define SATURATE_HALF_LOOPS __attribute__((target("avx2,f16c")))
#endif

namespace saturate::distributed::detail {

#ifdef SATURATE_HALF_LOOPS
namespace {

constexpr int64_t at_once = 8, grain = 32768;

/// bfloat16 is float32's upper half, rounded to the nearest even; a NaN is kept from rounding to an inf.
SATURATE_HALF_LOOPS inline __m128i to_bf16(__m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  const __m256i upper = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc00000), nan), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1));
}

SATURATE_HALF_LOOPS inline __m128i to_fp16(__m256 value) {
  return _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

SATURATE_HALF_LOOPS inline __m256 from_bf16(__m128i value) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(value), 16));
}

SATURATE_HALF_LOOPS inline __m256 from_fp16(__m128i value) { return _mm256_cvtph_ps(value); }

template <bool is_bf16>
SATURATE_HALF_LOOPS Narrowed narrow_part(const float* from, uint16_t* to, int64_t count, float factor, float limit) {
  const __m256 times = _mm256_set1_ps(factor), most = _mm256_set1_ps(limit), least = _mm256_set1_ps(-limit);
  const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  const __m256 infinity = _mm256_castsi256_ps(_mm256_set1_epi32(0x7f800000));
  __m256 beyond = _mm256_setzero_ps(), not_finite = _mm256_setzero_ps();
  const bool limited = limit > 0;
  int64_t i = 0;
  uint16_t last[at_once];
  float padded[at_once] = {};
  for (; i < count; i += at_once) {
    const bool whole = i + at_once <= count;
    if (!whole) std::memcpy(padded, from + i, static_cast<std::size_t>(count - i) * sizeof(float));
    __m256 value = _mm256_mul_ps(_mm256_loadu_ps(whole ? from + i : padded), times);
    if (limited) {
      const __m256 size = _mm256_and_ps(value, magnitude);
      beyond = _mm256_or_ps(beyond, _mm256_cmp_ps(size, most, _CMP_GT_OQ));
      not_finite = _mm256_or_ps(not_finite, _mm256_cmp_ps(size, infinity, _CMP_NLT_UQ));
      value = _mm256_max_ps(_mm256_min_ps(value, most), least);
    }
    const __m128i narrow = is_bf16 ? to_bf16(value) : to_fp16(value);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(whole ? to + i : last), narrow);
    if (!whole) std::memcpy(to + i, last, static_cast<std::size_t>(count - i) * sizeof(uint16_t));
  }
  return {_mm256_movemask_ps(beyond) != 0, _mm256_movemask_ps(not_finite) != 0};
}

template <bool is_bf16>
SATURATE_HALF_LOOPS void widen_part(const uint16_t* from, float* to, int64_t count, float factor) {
  const __m256 times = _mm256_set1_ps(factor);
  float last[at_once];
  uint16_t padded[at_once] = {};
  for (int64_t i = 0; i < count; i += at_once) {
    const bool whole = i + at_once <= count;
    if (!whole) std::memcpy(padded, from + i, static_cast<std::size_t>(count - i) * sizeof(uint16_t));
    const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(whole ? from + i : padded));
    const __m256 value = _mm256_mul_ps(is_bf16 ? from_bf16(narrow) : from_fp16(narrow), times);
    _mm256_storeu_ps(whole ? to + i : last, value);
    if (!whole) std::memcpy(to + i, last, static_cast<std::size_t>(count - i) * sizeof(float));
  }
}

bool processor_converts() {
  static const bool does = __builtin_cpu_supports("avx2");  // and with it F16C: no processor has the one alone
  return does;
}

}  // namespace

bool has_half_loops(const at::Tensor& wide, c10::ScalarType dtype) {
  return (dtype == at::kHalf || dtype == at::kBFloat16) && wide.scalar_type() == at::kFloat && wide.is_cpu() &&
         wide.is_contiguous() && processor_converts();
}

Narrowed narrow(const at::Tensor& wide, const at::Tensor& narrow, double factor, double limit) {
  const auto* from = wide.const_data_ptr<float>();
  auto* to = static_cast<uint16_t*>(narrow.mutable_data_ptr());
  const auto part = narrow.scalar_type() == at::kBFloat16 ? narrow_part<true> : narrow_part<false>;
  std::atomic<bool> beyond = false, not_finite = false;
  at::parallel_for(0, wide.numel(), grain, [&](int64_t begin, int64_t end) {
    const Narrowed found =
        part(from + begin, to + begin, end - begin, static_cast<float>(factor), static_cast<float>(limit));
    if (found.beyond) beyond = true;
    if (found.not_finite) not_finite = true;
  });
  return {beyond, not_finite};
}

void widen(const at::Tensor& narrow, const at::Tensor& wide, double factor) {
  const auto* from = static_cast<const uint16_t*>(narrow.const_data_ptr());
  auto* to = wide.mutable_data_ptr<float>();
  const auto part = narrow.scalar_type() == at::kBFloat16 ? widen_part<true> : widen_part<false>;
  at::parallel_for(0, wide.numel(), grain, [&](int64_t begin, int64_t end) {
    part(from + begin, to + begin, end - begin, static_cast<float>(factor));
  });
}

#else

bool has_half_loops(const at::Tensor&, c10::ScalarType) { return false; }
Narrowed narrow(const at::Tensor&, const at::Tensor&, double, double) { return {}; }
void widen(const at::Tensor&, const at::Tensor&, double) {}

#endif

}  // namespace saturate::distributed::detail
