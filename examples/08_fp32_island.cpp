// SPDX-License-Identifier: Apache-2.0
// An FP32 island: most of the model in float16, one part in float32. The part squares its inputs, which float16 (up to
// 65504) cannot hold: the norm is then infinite and the output 0, so nothing is learnt, and nothing is NaN either. As
// an island the part computes in float32 and hands float16 on. Expected: the loss without the island stays near log(4)
// = 1.39, with it it falls below 0.8.
#include <torch/torch.h>

#include <iostream>

#include "saturate/saturate.hpp"

namespace st = saturate;

// Root mean square over features, as RMSNorm has it.
struct RmsNormImpl : torch::nn::Module {
  torch::Tensor weight = register_parameter("weight", torch::ones(32));
  torch::Tensor forward(const torch::Tensor& x) { return x / (x * x).mean(-1, true).sqrt() * weight; }
};
TORCH_MODULE(RmsNorm);

struct NetImpl : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(16, 32));
  RmsNorm norm = register_module("norm", RmsNorm());
  torch::nn::Linear head = register_module("head", torch::nn::Linear(32, 4));

  torch::Tensor forward(torch::Tensor x) {
    x = st::call(norm, st::call(first, x));  // st::call marks the part: that is where an island can be
    return st::call(head, x);
  }
};
TORCH_MODULE(Net);

// begin island
template <class Precision>
double train(Precision precision) {
  torch::manual_seed(0);
  Net net;
  st::Trainer trainer(net, st::optim::AdamW(net->parameters(), {.lr = 1e-2}), st::CrossEntropy{}, std::move(precision));
  const torch::Tensor x = torch::randn({256, 16});
  const std::pair batch(x * 2000, x.narrow(1, 0, 4).argmax(1));  // features that nobody has normalized
  for (int i = 0; i < 60; ++i) trainer.step(batch);

  const st::GemmPrecision report(*net);  // what runs in which precision, part by part
  const double loss = trainer.step(batch).loss();
  std::cout << report.table() << "loss " << loss << "\n\n";
  return loss;
}

int main() {
  const double without = train(st::Fp16{});
  const double with = train(st::Fp16{}.keep_fp32("norm"));  // a regular expression for the part's whole name
  // end island
  return without > 1.2 && with < 0.8 ? 0 : 1;
}
