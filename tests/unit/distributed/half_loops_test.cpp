// SPDX-License-Identifier: Apache-2.0
#include "src/distributed/half_loops.hpp"
#include "support.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <cmath>
#include <limits>

namespace loops = saturate::distributed::detail;

TEST_CASE("float32 to 16 bits and back in one pass is what LibTorch does in two") {
  const auto dtype = GENERATE(at::kHalf, at::kBFloat16);
  torch::manual_seed(1);
  for (const int64_t count : {0, 1, 7, 8, 9, 100'003}) {
    for (const double scale : {1e-9, 1e-6, 1.0, 1e4, 1e30}) {
      const at::Tensor wide = torch::randn({count}) * scale;
      if (!loops::has_half_loops(wide, dtype)) SKIP("this processor does not convert");
      const at::Tensor narrow = torch::full({count + 1}, 3, dtype), sent = narrow.narrow(0, 0, count);
      const auto found = loops::narrow(wide, sent, 0.25);
      CHECK_FALSE(found.beyond);
      CHECK(support::same_bits(sent.clone(), (wide * 0.25).to(dtype)));
      CHECK(narrow[count].item<float>() == 3);  // nothing is written behind the end
      const at::Tensor back = torch::full({count + 1}, 3.0f);
      loops::widen(sent, back.narrow(0, 0, count), 4);
      CHECK(support::same_bits(back.narrow(0, 0, count).clone(), sent.to(at::kFloat) * 4));
      CHECK(back[count].item<float>() == 3);
    }
  }
}

TEST_CASE("what does not fit becomes the limit, and what is not finite is told") {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const int64_t place : {0, 5, 11}) {
    const at::Tensor wide = torch::arange(12).to(at::kFloat), sent = torch::empty({12}, at::kHalf);
    if (!loops::has_half_loops(wide, at::kHalf)) SKIP("this processor does not convert");
    auto found = loops::narrow(wide, sent, 1, 65504);
    CHECK((!found.beyond && !found.not_finite));
    wide[place] = -1e6;
    found = loops::narrow(wide, sent, 1, 30000);
    CHECK((found.beyond && !found.not_finite));
    CHECK(sent[place].item<float>() == -30000);
    for (const float value : {inf, -inf, nan}) {
      wide[place] = value;
      CHECK(loops::narrow(wide, sent, 1, 30000).not_finite);
    }
    const at::Tensor bf16 = torch::empty({12}, at::kBFloat16);
    wide[place] = nan;
    loops::narrow(wide, bf16, 1);
    CHECK(std::isnan(bf16[place].item<float>()));
    wide[place] = inf;
    loops::narrow(wide, bf16, 1);
    CHECK(bf16[place].item<float>() == inf);
  }
}
