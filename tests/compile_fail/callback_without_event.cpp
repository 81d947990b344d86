// SPDX-License-Identifier: Apache-2.0
// expect: implements no event: a policy has a nested `axis`
#include "saturate/trainer/callback.hpp"

struct Printer {
  void on_stop(const saturate::StepEvent&) {}  // misspelt
};
saturate::detail::CheckPack<Printer> check;
