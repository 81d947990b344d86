// SPDX-License-Identifier: Apache-2.0
// Finds where a NaN comes from. The model takes the logarithm of a probability that becomes 0 as training goes on; the
// guard refuses that window, runs it again with every operator observed, and names the part, the operator and the range
// of its inputs.
// Expected: one report, "blocks.2: aten::log (forward) ... from inputs in [0, ...", and weights that stay finite.
#include <torch/torch.h>

#include <iostream>

#include "saturate/saturate.hpp"

namespace st = saturate;

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(bool careless) : careless(careless) {}
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(8, 8));
  bool careless;

  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = linear(x);
    if (!careless) return torch::tanh(y);
    return torch::log(torch::softmax(y * 400, 1));  // log_softmax would be the right way
  }
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  torch::nn::ModuleList blocks = register_module("blocks", torch::nn::ModuleList());
  NetImpl() {
    for (int i = 0; i < 4; ++i) blocks->push_back(Block(i == 2));
  }
  torch::Tensor forward(const torch::Tensor& x) { return st::call_each<BlockImpl>(blocks, x); }
};
TORCH_MODULE(Net);

int main() {
  torch::manual_seed(0);
  Net net;
  // begin guard
  st::NanGuard guard({.max_reports = 1});
  st::Trainer trainer(net, st::optim::AdamW(net->parameters(), {.lr = 1e-3}), st::CrossEntropy{}, std::ref(guard));
  const std::pair batch(torch::randn({32, 8}), torch::randint(8, {32}));
  for (int i = 0; i < 50 && guard.reports().empty(); ++i) trainer.step(batch);

  for (const st::NanReport& report : guard.reports()) std::cout << report.message() << "\n";
  // end guard
  bool finite = true;
  for (const auto& parameter : net->parameters()) finite = finite && torch::isfinite(parameter).all().item<bool>();
  if (guard.reports().size() != 1) return 1;
  const st::NanReport& report = guard.reports()[0];
  return finite && report.module == "blocks.2" && report.op == "aten::log" && report.input_min == 0 ? 0 : 1;
}
