// SPDX-License-Identifier: Apache-2.0
// Activation checkpointing by a policy: the blocks of a model, marked by st::call_each, are computed again in backward,
// and their activations are not kept. Expected: the same loss to the last bit, and less than half the peak of tensor
// memory.
#include <torch/torch.h>

#include <iostream>

#include "saturate/saturate.hpp"

namespace st = saturate;

struct BlockImpl : torch::nn::Module {
  torch::nn::LayerNorm norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({64})));
  torch::nn::Linear up = register_module("up", torch::nn::Linear(64, 256));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(256, 64));
  torch::Tensor forward(const torch::Tensor& x) {
    return x + torch::dropout(down->forward(torch::gelu(up->forward(norm->forward(x)))), 0.1, is_training());
  }
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  torch::nn::ModuleList blocks = register_module("blocks", torch::nn::ModuleList());
  torch::nn::Linear head = register_module("head", torch::nn::Linear(64, 4));

  NetImpl() {
    for (int i = 0; i < 12; ++i) blocks->push_back(Block());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return head->forward(st::call_each<BlockImpl>(blocks, x));  // marks: "blocks.0" to "blocks.11"
  }
};
TORCH_MODULE(Net);

struct Result {
  double loss;
  double mebibytes;
};

template <class... Recompute>
Result train(const char* name, Recompute... recompute) {
  torch::manual_seed(0);
  Net net;
  st::Trainer trainer(net, st::optim::AdamW(net->parameters(), {.lr = 1e-3}), st::CrossEntropy{}, recompute...);
  const torch::Tensor x = torch::randn({512, 64});
  const std::pair batch(x, x.narrow(1, 0, 4).argmax(1));
  trainer.step(batch);
  const st::MemoryMeter meter;  // from here on, so that parameters and the optimizer's state are not in it
  Result result{};
  for (int i = 0; i < 20; ++i) result.loss = trainer.step(batch).loss();
  result.mebibytes = static_cast<double>(meter.counts().peak_bytes) / (1 << 20);
  std::cout << name << ": loss " << result.loss << ", " << result.mebibytes << " MiB of activations and gradients\n";
  return result;
}

int main() {
  // begin recompute
  const Result plain = train("plain", st::NoRecompute{});
  const Result all = train("Recompute::all()", st::Recompute::all());
  const Result half = train("Recompute::every(2)", st::Recompute::every(2));
  const Result some = train("Recompute::named", st::Recompute::named({"blocks\\.[0-7]"}));  // whole names
  // end recompute
  const bool equal = plain.loss == all.loss && plain.loss == half.loss && plain.loss == some.loss;
  return equal && all.mebibytes < plain.mebibytes / 2 && half.mebibytes < plain.mebibytes ? 0 : 1;
}
