// SPDX-License-Identifier: Apache-2.0
// expect: saturate: an averaging policy needs `void update(const at::Tensor& refused)`
#include "saturate/trainer/callback.hpp"

struct Polyak {
  using axis = saturate::axis::averaging;
};
saturate::detail::CheckPack<Polyak> check;
