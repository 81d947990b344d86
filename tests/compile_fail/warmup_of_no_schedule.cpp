// SPDX-License-Identifier: Apache-2.0
// expect: saturate: Warmup needs a schedule, with `double factor(int64_t step) const`
#include "saturate/schedule/warmup.hpp"

const saturate::Warmup schedule{10, 0.5};
