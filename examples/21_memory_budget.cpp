// SPDX-License-Identifier: Apache-2.0
// A budget in bytes: the first steps measure, and then as few blocks are recomputed as fit. Expected: the table of the
// plan, tensor memory within the budget, some blocks recomputed and others not, and the loss of a plain run to the last
// bit.
#include <torch/torch.h>

#include <iostream>

#include "saturate/saturate.hpp"

namespace st = saturate;

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t hidden)
      : up(register_module("up", torch::nn::Linear(64, hidden))),
        down(register_module("down", torch::nn::Linear(hidden, 64))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return x + torch::dropout(down->forward(torch::gelu(up->forward(norm->forward(x)))), 0.1, is_training());
  }
  torch::nn::LayerNorm norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({64})));
  torch::nn::Linear up, down;
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  torch::nn::ModuleList blocks = register_module("blocks", torch::nn::ModuleList());
  torch::nn::Linear head = register_module("head", torch::nn::Linear(64, 4));

  NetImpl() {
    for (const int64_t hidden : {256, 64, 512, 128, 384, 64, 256, 1024}) blocks->push_back(Block(hidden));
  }
  torch::Tensor forward(const torch::Tensor& x) { return head->forward(st::call_each<BlockImpl>(blocks, x)); }
};
TORCH_MODULE(Net);

/// Runs 12 steps. @return the last loss, and the peak of its step: activations and gradients, bytes.
template <class Trainer>
std::pair<double, int64_t> train(Trainer& trainer) {
  torch::manual_seed(1);
  const torch::Tensor x = torch::randn({256, 64});
  const std::pair batch(x, x.narrow(1, 0, 4).argmax(1));
  for (int i = 0; i < 11; ++i) trainer.step(batch);
  const st::MemoryMeter meter;
  const double loss = trainer.step(batch).loss();
  return {loss, meter.counts().peak_bytes};
}

template <class Recompute>
auto make_trainer(Recompute recompute) {
  torch::manual_seed(0);
  Net net;
  return st::Trainer(net, st::optim::AdamW(net->parameters(), {.lr = 1e-3}), st::CrossEntropy{}, recompute);
}

/// The same in a loop of one's own. @return the last loss.
double by_hand(int64_t bytes) {
  torch::manual_seed(0);
  Net net;
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  const torch::Tensor x = torch::randn({256, 64});
  double value = 0;
  // begin by_hand
  auto policy = st::Recompute::budget(bytes);
  policy.attach(*net);
  for (int step = 0; step < 12; ++step) {
    const auto window = policy.window_scope();
    torch::Tensor loss;
    {
      const auto scope = policy.scope();
      loss = net->forward(x).pow(2).mean();
    }
    loss.backward();
    policy.after_backward();  // may throw, before the update
    optimizer.step();
    optimizer.zero_grad();
    value = loss.item<double>();
  }
  // end by_hand
  return policy.plan().measured_peak <= bytes ? value : -1;
}

int main() {
  auto plain = make_trainer(st::NoRecompute{});
  const auto [plain_loss, plain_peak] = train(plain);
  auto all = make_trainer(st::Recompute::all());
  const auto [all_loss, all_peak] = train(all);
  const int64_t bytes = (plain_peak + all_peak) / 2;

  // begin budget
  auto trainer = make_trainer(st::Recompute::budget(bytes));
  const auto [loss, peak] = train(trainer);
  const st::MemoryPlan& plan = trainer.policy<st::Recompute>().plan();
  plan.print(std::cout);
  for (const auto& point : trainer.policy<st::Recompute>().pareto()) {
    std::cout << point.peak_bytes << " bytes: " << point.extra_ms << " ms more in a step\n";
  }
  // end budget
  std::cout << "plain " << plain_peak << " bytes, all() " << all_peak << ", budget " << bytes << ": " << peak << '\n';
  const bool equal = loss == plain_loss && loss == all_loss;
  const bool fits = plan.settled && plan.measured_peak <= bytes && peak <= bytes;
  const bool some = plan.recomputed_share > 0 && plan.recomputed_share < 1;
  return equal && fits && some && by_hand(bytes) > 0 && by_hand(bytes) == by_hand(4 * bytes) ? 0 : 1;
}
