// SPDX-License-Identifier: Apache-2.0
#include "rounding.hpp"

#include "cpu_kernel.hpp"
#include "loops.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/where.h>
#include <c10/util/BFloat16.h>

namespace saturate::optim {

void round_at_random(const at::Tensor& narrow, const at::Tensor& wide, uint64_t key) {
  auto* to = reinterpret_cast<uint16_t*>(narrow.mutable_data_ptr<at::BFloat16>());
  const auto* from = wide.const_data_ptr<float>();
  cpu::Blocks(wide).run([&](const cpu::Block& block) {
    loops::best<float>().round_at_random(block.size, from + block.begin, to + block.begin, key,
                                         static_cast<uint64_t>(block.begin));
  });
}

void round_at_random(const at::Tensor& narrow, const at::Tensor& wide, const at::Generator& generator) {
  const at::Tensor bits = wide.view(at::kInt);
  const at::Tensor noise = at::empty_like(bits).random_(0, 65536, generator);
  const at::Tensor rounded = (bits + noise).bitwise_and(-65536).view(at::kFloat);
  const at::Tensor cut = bits.bitwise_and(-65536).view(at::kFloat);
  // What would round to infinity stays at the largest value; infinities and NaN are not touched by the noise.
  const at::Tensor finite = at::where(rounded.isfinite(), rounded, cut);
  narrow.copy_(at::where(wide.isfinite(), finite, wide));
}

}  // namespace saturate::optim
