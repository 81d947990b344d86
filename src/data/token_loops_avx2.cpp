// SPDX-License-Identifier: Apache-2.0
// Compiled for AVX2.
#include "token_loops_body.hpp"

namespace saturate::data::token_loops {

extern const Loops<uint8_t> avx2_8;
extern const Loops<uint16_t> avx2_16;
extern const Loops<uint32_t> avx2_32;
const Loops<uint8_t> avx2_8 = all_loops<uint8_t>;
const Loops<uint16_t> avx2_16 = all_loops<uint16_t>;
const Loops<uint32_t> avx2_32 = all_loops<uint32_t>;

}  // namespace saturate::data::token_loops
