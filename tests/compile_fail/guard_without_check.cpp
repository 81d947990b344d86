// SPDX-License-Identifier: Apache-2.0
// expect: saturate: a guard policy needs begin(), check(loss_sum, grad_norm, found_inf) and end(WindowReplay)
#include "saturate/trainer/callback.hpp"

struct Watch {
  using axis = saturate::axis::guard;
  void begin();
};
saturate::detail::CheckPack<Watch> check;
