// SPDX-License-Identifier: Apache-2.0
// expect: saturate: a schedule policy needs `double factor(int64_t step) const`
#include "saturate/trainer/callback.hpp"

struct Cosine {
  using axis = saturate::axis::schedule;
  double lr(std::int64_t) const { return 1; }
};
saturate::detail::CheckPack<Cosine> check;
