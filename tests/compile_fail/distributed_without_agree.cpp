// SPDX-License-Identifier: Apache-2.0
// expect: saturate: a distributed policy needs micro_step(bool), finish(), agree(at::Tensor&)
#include "saturate/trainer/callback.hpp"

struct Ring {
  using axis = saturate::axis::distributed;
  int micro_step(bool) { return 0; }
  void finish() {}
};
saturate::detail::CheckPack<Ring> check;
