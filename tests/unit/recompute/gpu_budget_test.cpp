// SPDX-License-Identifier: Apache-2.0
#include "saturate/marks.hpp"
#include "saturate/recompute/policy.hpp"
#include "support.hpp"

#include <torch/cuda.h>

#include <catch2/catch_test_macros.hpp>

#include <vector>

namespace st = saturate;

namespace {

const c10::Device gpu(c10::kCUDA, 0);

struct WideImpl : torch::nn::Module {
  explicit WideImpl(int64_t hidden)
      : up(register_module("up", torch::nn::Linear(256, hidden))),
        down(register_module("down", torch::nn::Linear(hidden, 256))) {}
  at::Tensor forward(const at::Tensor& x) { return x + torch::dropout(down(torch::gelu(up(x))), 0.1, is_training()); }
  torch::nn::Linear up, down;
};
TORCH_MODULE(Wide);

struct StackImpl : torch::nn::Module {
  StackImpl() {
    for (const int64_t hidden : {1024, 512, 2048, 256, 1536, 768}) blocks->push_back(Wide(hidden));
    register_module("blocks", blocks);
  }
  at::Tensor forward(const at::Tensor& x) { return st::call_each<WideImpl>(blocks, x); }
  torch::nn::ModuleList blocks;
};
TORCH_MODULE(Stack);

/// Gradients and losses of some windows, on the same weights each time.
std::vector<at::Tensor> run(st::Recompute& policy, int windows) {
  torch::manual_seed(1);
  Stack net;
  net->to(gpu);
  policy.attach(*net, gpu);
  const at::Tensor x = torch::randn({4096, 256}, gpu);
  std::vector<at::Tensor> values;
  for (int i = 0; i < windows; ++i) {
    net->zero_grad(/*set_to_none=*/true);
    {
      const auto whole = policy.window_scope();
      at::Tensor loss;
      {
        const auto scope = policy.scope();
        loss = net->forward(x).pow(2).mean();
      }
      loss.backward();
      policy.after_backward();
      values.push_back(loss.detach().cpu());
    }
    values.push_back(net->blocks->parameters()[0].grad().cpu());
  }
  return values;
}

}  // namespace

TEST_CASE("Recompute::budget on a GPU: within the budget by the allocator's count, bit for bit") {
  if (!torch::cuda::is_available()) SKIP("no GPU");
  constexpr int windows = 20;
  auto all = st::Recompute::all();
  const auto expected = run(all, windows);
  auto wide = st::Recompute::budget(int64_t{1} << 40);
  CHECK(support::same_bits(run(wide, windows), expected));
  REQUIRE(wide.plan().settled);
  CHECK(wide.plan().recomputed_share == 0);
  const auto curve = wide.pareto();
  REQUIRE(curve.size() > 2);
  for (const auto& point : {curve.front(), curve[curve.size() / 2]}) {
    const int64_t budget = point.peak_bytes + (1 << 20);
    auto policy = st::Recompute::budget(budget);
    CHECK(support::same_bits(run(policy, windows), expected));
    CHECK(policy.plan().settled);
    CHECK(policy.plan().measured_peak <= budget);
    CHECK(policy.plan().measured_peak > budget / 2);
    CHECK(policy.plan().recomputed_share > 0);
  }
}
