// SPDX-License-Identifier: Apache-2.0
#include "pixel_loops.hpp"

#include "pixel_loops_body.hpp"

namespace saturate::data::detail {

#ifdef SATURATE_AVX2_LOOPS
// pixel_loops_avx2.cpp
extern const PixelLoops avx2_pixel_loops;
#endif

const PixelLoops& portable_pixel_loops() { return all_pixel_loops; }

const PixelLoops& pixel_loops() {
#ifdef SATURATE_AVX2_LOOPS
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2) return avx2_pixel_loops;
#endif
  return portable_pixel_loops();
}

}  // namespace saturate::data::detail
