// SPDX-License-Identifier: Apache-2.0
// Uses one thing of each kind: a header-only template, the compiled library, LibTorch, and what the library needs
// behind the scenes (spdlog, zlib). Narrow headers: compiled three times in the tests.
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <cstdio>
#include <utility>

#include "saturate/data/idx_source.hpp"
#include "saturate/error.hpp"
#include "saturate/for_each_tensor.hpp"
#include "saturate/log.hpp"

int main() {
  auto batch = std::make_pair(at::ones({2, 3}), at::zeros({4}));
  int64_t elements = 0;
  saturate::visit_tensors(batch, [&](const at::Tensor& tensor) { elements += tensor.numel(); });
  saturate::log::set_level(saturate::log::Level::warn);
  if (!saturate::log::warn_once("consumer", "one warning, to show that the logger is linked")) return 1;
  try {
    saturate::data::load_idx("no-such-file.gz");
    return 1;
  } catch (const saturate::Error&) {
    std::printf("consumer: %ld elements\n", static_cast<long>(elements));
  }
  return elements == 10 ? 0 : 1;
}
