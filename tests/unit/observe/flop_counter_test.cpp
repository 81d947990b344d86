// SPDX-License-Identifier: Apache-2.0
#include "saturate/observe/flop_counter.hpp"

#include "saturate/error.hpp"
#include "saturate/precision/autocast_scope.hpp"
#include "saturate/recompute/recompute.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <map>
#include <string>
#include <tuple>
#include <utility>

namespace {

namespace st = saturate;
namespace nn = torch::nn;

struct AttentionBlockImpl : nn::Module {
  static constexpr int64_t width = 64, heads = 4;
  nn::LayerNorm norm1 = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({width})));
  nn::LayerNorm norm2 = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({width})));
  nn::Linear qkv = register_module("qkv", nn::Linear(width, 3 * width));
  nn::Linear out = register_module("out", nn::Linear(width, width));
  nn::Linear up = register_module("up", nn::Linear(width, 4 * width));
  nn::Linear down = register_module("down", nn::Linear(4 * width, width));

  at::Tensor forward(const at::Tensor& input) {
    const int64_t n = input.size(0), length = input.size(1);
    const auto parts = qkv(norm1(input)).view({n, length, 3, heads, width / heads});
    const auto by_head = [&](int64_t i) { return parts.select(2, i).transpose(1, 2); };
    const auto mixed = at::scaled_dot_product_attention(by_head(0), by_head(1), by_head(2), {}, 0.0, true);
    const auto x = input + out(mixed.transpose(1, 2).reshape({n, length, width}));
    return x + down(at::gelu(up(norm2(x))));
  }
};
TORCH_MODULE(AttentionBlock);

using Flops = std::pair<int64_t, int64_t>;

/// Forward and backward.
Flops flops_of(auto&& run) {
  st::FlopCounter counter;
  run().sum().backward();
  CHECK(counter.flops(st::WorkPhase::recompute) == 0);
  CHECK(counter.unknown().empty());
  const Flops flops{counter.flops(st::WorkPhase::forward), counter.flops(st::WorkPhase::backward)};
  CHECK(counter.model_flops() == flops.first + flops.second);
  CHECK(counter.hardware_flops() == counter.model_flops());
  return flops;
}

/// The work of one operator, in all phases.
std::vector<st::OpWork> work_named(const st::FlopCounter& counter, const std::string& name) {
  std::vector<st::OpWork> found;
  for (const st::OpWork& work : counter.work()) {
    if (work.name == name) found.push_back(work);
  }
  return found;
}

}  // namespace

// Of torch.utils.flop_counter.FlopCounterMode in LibTorch 2.11's Python, around the forward and around the backward.
TEST_CASE("FlopCounter: an MLP and a CNN, as Python's counter") {
  const nn::Sequential mlp(nn::Linear(64, 128), nn::ReLU(), nn::Linear(128, 10));
  const auto rows = torch::randn({32, 64});
  CHECK((flops_of([&] { return nn::Sequential(mlp)->forward(rows); }) == Flops{606208, 688128}));

  nn::Sequential cnn(nn::Conv2d(nn::Conv2dOptions(3, 16, 3).padding(1)), nn::ReLU(),
                     nn::Conv2d(nn::Conv2dOptions(16, 32, 3).stride(2)), nn::ReLU(),
                     nn::ConvTranspose2d(nn::ConvTranspose2dOptions(32, 8, 2).stride(2)), nn::Flatten(),
                     nn::Linear(8 * 14 * 14, 10));
  const auto pictures = torch::randn({4, 3, 16, 16});
  CHECK((flops_of([&] { return cnn->forward(pictures); }) == Flops{3217920, 5551104}));
}

TEST_CASE("FlopCounter: a transformer block, as Python's counter with its formulas of attention") {
  // FlopCounterMode says 6291456 and 12582912: it does not know attention's operator on the CPU. sdpa_flop_count and
  // sdpa_backward_flop_count of the same module say the rest.
  AttentionBlock block;
  const auto x = torch::randn({2, 32, 64}, torch::requires_grad());
  CHECK((flops_of([&] { return block(x); }) == Flops{6291456 + 524288, 12582912 + 1310720}));
}

TEST_CASE("FlopCounter: batched products as Python's counter; groups count what they compute") {
  const auto q = torch::randn({2, 4, 16, 8}, torch::requires_grad());
  CHECK((flops_of([&] { return q.matmul(q.transpose(-1, -2)); }) == Flops{32768, 65536}));
  // Python says 184320 for the second: it has each weight meet the channels of all four groups.
  nn::Conv2d grouped(nn::Conv2dOptions(8, 8, 3).groups(4));
  const auto x = torch::randn({2, 8, 10, 10}, torch::requires_grad());
  CHECK((flops_of([&] { return grouped(x); }) == Flops{36864, 2 * 36864}));
}

TEST_CASE("FlopCounter: a recomputed forward is counted apart, once") {
  nn::Sequential block(nn::Linear(16, 32), nn::GELU(), nn::Linear(32, 16), nn::Tanh());
  const auto x = torch::randn({8, 16}, torch::requires_grad());
  const auto plain = flops_of([&] { return block->forward(x); });
  st::FlopCounter counter;
  const auto run = [&](const at::Tensor& input) { return block->forward(input); };
  st::recompute(st::with_modules(run, block), x).sum().backward();
  CHECK(counter.flops(st::WorkPhase::forward) == plain.first);
  CHECK(counter.flops(st::WorkPhase::backward) == plain.second);
  CHECK(counter.flops(st::WorkPhase::recompute) == plain.first);
  CHECK(counter.model_flops() == plain.first + plain.second);
  CHECK(counter.hardware_flops() == 2 * plain.first + plain.second);
  const auto products = work_named(counter, "aten::addmm");
  REQUIRE(products.size() == 4);  // two shapes, first and second forward
  CHECK(std::count_if(products.begin(), products.end(),
                      [](const auto& work) { return work.phase == st::WorkPhase::recompute; }) == 2);
}

TEST_CASE("FlopCounter: nested recomputed blocks: each forward that runs is counted") {
  nn::Linear inner(16, 16), outer(16, 16);
  const auto x = torch::randn({8, 16}, torch::requires_grad());
  const int64_t one = 2 * 8 * 16 * 16;
  st::FlopCounter counter;
  const auto inside = [&](const at::Tensor& input) { return inner->forward(input).tanh(); };
  const auto whole = [&](const at::Tensor& input) {
    return outer->forward(st::recompute(st::with_modules(inside, inner), input)).tanh();
  };
  st::recompute(st::with_modules(whole, inner, outer), x).sum().backward();
  CHECK(counter.flops(st::WorkPhase::forward) == 2 * one);
  CHECK(counter.flops(st::WorkPhase::backward) == 4 * one);
  const int64_t again = counter.flops(st::WorkPhase::recompute);
  CHECK(again >= 2 * one);
  CHECK(again <= 3 * one);  // the inner one in the outer's second forward, and for its own backward
}

TEST_CASE("FlopCounter: under autocast the product with the cast tensors counts, and the casts as what they move") {
  const auto a = torch::randn({16, 32}), b = torch::randn({32, 8});
  st::FlopCounter counter;
  {
    const st::AutocastScope autocast(at::kCPU, at::kBFloat16);
    (void)at::mm(a, b);
  }
  const auto products = work_named(counter, "aten::mm");
  REQUIRE(products.size() == 1);
  CHECK(products[0].flops == 2 * 16 * 32 * 8);
  CHECK(products[0].precision == "bfloat16");
  CHECK(products[0].bytes == 2 * (16 * 32 + 32 * 8 + 16 * 8));
  int64_t cast = 0;
  for (const auto& work : work_named(counter, "aten::copy_")) cast += work.bytes;
  CHECK(cast == (4 + 2) * (16 * 32 + 32 * 8));
}

TEST_CASE("FlopCounter: bytes are those of each tensor once; views and allocations move none") {
  const auto x = torch::ones({100, 4}), y = torch::ones({100, 4}), ids = torch::zeros({10}, torch::kLong);
  auto out = torch::empty({100, 4});
  const auto bytes = [](auto&& run) {
    st::FlopCounter counter;
    run();
    return counter.bytes();
  };
  CHECK(bytes([&] { (void)(x + y); }) == 3 * 1600);
  CHECK(bytes([&] { (void)(x * x); }) == 2 * 1600);
  CHECK(bytes([&] { (void)at::add_out(out, x, y); }) == 3 * 1600);
  CHECK(bytes([&] { out.add_(x); }) == 3 * 1600);
  CHECK(bytes([&] { out.copy_(x); }) == 2 * 1600);
  CHECK(bytes([&] { out.zero_(); }) == 1600);
  CHECK(bytes([&] { (void)x.t().view({4, 5, 20}).select(0, 1).unsqueeze(0); }) == 0);
  CHECK(bytes([&] { (void)torch::empty({1000}); }) == 0);
  CHECK(bytes([&] { (void)x.reshape({4, 100}); }) == 0);
  CHECK(bytes([&] { (void)x.t().contiguous(); }) == 2 * 1600);
  CHECK(bytes([&] { (void)at::relu(torch::ones({1}).expand({400})); }) >= 4 + 1600);  // 4 are read
  CHECK(bytes([&] { (void)at::relu(torch::ones({1}).expand({400})); }) < 2 * 1600);
  CHECK(bytes([&] { (void)at::embedding(x, ids); }) == 160 + 160 + 80);  // ten rows of a hundred
}

TEST_CASE("FlopCounter: the same operator on the same shapes adds up; times are measured") {
  const auto a = torch::randn({64, 64});
  st::FlopCounter counter;
  for (int i = 0; i < 3; ++i) (void)at::mm(a, a);
  (void)at::mm(a, a.narrow(1, 0, 32));
  const auto products = work_named(counter, "aten::mm");
  REQUIRE(products.size() == 2);
  CHECK(products[0].calls == 3);
  CHECK(products[0].flops == 3 * 2 * 64 * 64 * 64);
  CHECK(products[0].shapes == "[64, 64], [64, 64]");
  CHECK(products[0].precision == "float32");
  CHECK(products[0].seconds > 0);
  CHECK(products[1].shapes == "[64, 64], [64, 32]");
  counter.clear();
  CHECK(counter.work().empty());
  CHECK(counter.model_flops() == 0);
}

TEST_CASE("FlopCounter: one at a time; an operator that throws leaves the counting as it was") {
  const auto a = torch::randn({4, 4});
  {
    st::FlopCounter counter;
    CHECK_THROWS_AS(st::FlopCounter(), st::Error);
    CHECK_THROWS(at::mm(a, torch::randn({5, 4})));
    counter.clear();
    (void)at::mm(a, a);
    CHECK(counter.model_flops() == 2 * 4 * 4 * 4);
  }
  (void)at::mm(a, a);
  CHECK(st::FlopCounter().model_flops() == 0);
}

TEST_CASE("FlopCounter: what there is no formula for is named") {
  const auto x = torch::randn({5, 2, 8}), h = torch::zeros({1, 2, 8});
  nn::LSTM lstm(nn::LSTMOptions(8, 8));
  st::FlopCounter counter;
  const at::NoGradGuard no_grad;
  (void)lstm->forward(x);
  // The fused layer is used where oneDNN is there; otherwise its products are counted one by one.
  CHECK((counter.model_flops() > 0 || counter.unknown() == std::vector<std::string>{"aten::mkldnn_rnn_layer"}));
}
