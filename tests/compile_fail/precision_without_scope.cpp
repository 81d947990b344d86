// SPDX-License-Identifier: Apache-2.0
// expect: saturate: a precision policy needs `auto scope(c10::DeviceType) const`
#include "saturate/trainer/callback.hpp"

struct Fp8 {
  using axis = saturate::axis::precision;
};
saturate::detail::CheckPack<Fp8> check;
