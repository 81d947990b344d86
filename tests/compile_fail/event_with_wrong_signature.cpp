// SPDX-License-Identifier: Apache-2.0
// expect: saturate: on_step has the wrong signature; expected `void on_step(const saturate::StepEvent&)`
#include "saturate/trainer/callback.hpp"

struct Printer {
  void on_step(int) {}
};
saturate::detail::CheckPack<Printer> check;
