// SPDX-License-Identifier: Apache-2.0
// expect: saturate: a clipping policy needs `saturate::ClipResult clip(std::vector<at::Tensor>&) const`
#include "saturate/trainer/callback.hpp"

struct ByValue {
  using axis = saturate::axis::clipping;
  double limit = 1;
};
saturate::detail::CheckPack<ByValue> check;
