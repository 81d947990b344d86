// SPDX-License-Identifier: Apache-2.0
// expect: saturate: an accumulation policy needs `int64_t micro_batches() const`
#include "saturate/trainer/callback.hpp"

struct Growing {
  using axis = saturate::axis::accumulation;
  int k = 1;
};
saturate::detail::CheckPack<Growing> check;
