// SPDX-License-Identifier: Apache-2.0
// expect: saturate: two policies are given for one axis; keep one of them
#include "saturate/trainer/callback.hpp"

struct Constant {
  using axis = saturate::axis::schedule;
  double factor(std::int64_t) const { return 1; }
};
struct Halved {
  using axis = saturate::axis::schedule;
  double factor(std::int64_t) const { return 0.5; }
};
saturate::detail::CheckPack<Constant, Halved> check;
