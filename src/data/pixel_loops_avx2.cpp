// SPDX-License-Identifier: Apache-2.0
// Compiled for AVX2, without FMA: the same bits as the other set.
#include "pixel_loops_body.hpp"

namespace saturate::data::detail {

extern const PixelLoops avx2_pixel_loops;
const PixelLoops avx2_pixel_loops = all_pixel_loops;

}  // namespace saturate::data::detail
