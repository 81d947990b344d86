// SPDX-License-Identifier: Apache-2.0
// expect: saturate: this type fits no axis and implements no event
#include "saturate/trainer/callback.hpp"

struct Settings {
  double lr = 1;
};
saturate::detail::CheckPack<Settings> check;
