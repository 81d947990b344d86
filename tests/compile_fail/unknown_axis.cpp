// SPDX-License-Identifier: Apache-2.0
// expect: saturate: this type's `axis` names none of the Trainer's axes
#include "saturate/trainer/callback.hpp"

struct Quantized {
  using axis = struct quantization;
};
saturate::detail::CheckPack<Quantized> check;
