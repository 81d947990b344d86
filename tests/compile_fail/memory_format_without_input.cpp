// SPDX-License-Identifier: Apache-2.0
// expect: saturate: a memory-format policy needs `void convert(torch::nn::Module&) const`
#include "saturate/trainer/callback.hpp"

struct Nhwc {
  using axis = saturate::axis::memory_format;
  void convert(torch::nn::Module&) const {}
};
saturate::detail::CheckPack<Nhwc> check;
