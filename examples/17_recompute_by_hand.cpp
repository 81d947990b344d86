// SPDX-License-Identifier: Apache-2.0
// Activation checkpointing in a loop of your own: st::recompute(block, x) in place of block->forward(x), for a module
// and for a callable with several tensors in and out. Expected: gradients equal to the last bit.
#include <torch/torch.h>

#include <iostream>
#include <tuple>
#include <vector>

#include "saturate/recompute/recompute.hpp"

namespace st = saturate;

int main() {
  torch::nn::Sequential stem(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1)), torch::nn::BatchNorm2d(8),
                             torch::nn::ReLU());
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(8, 8, 3).padding(1));
  torch::nn::BatchNorm2d norm(8);
  const torch::Tensor x = torch::randn({4, 3, 16, 16});

  const auto gradients = [&](bool again) {
    torch::manual_seed(1);
    // begin recompute
    torch::Tensor y = again ? st::recompute(stem, x) : stem->forward(x);
    auto split = [=](torch::Tensor z, double rate) mutable {
      z = torch::dropout(norm(conv(z)), rate, /*train=*/true);
      return std::tuple(z.mean({2, 3}), z.amax({2, 3}));
    };
    // A callable says which modules it runs, so that BatchNorm counts each batch once.
    auto [mean, peak] = again ? st::recompute(st::with_modules(split, conv, norm), y, 0.1) : split(y, 0.1);
    (mean * peak).sum().backward();
    // end recompute
    std::vector<torch::Tensor> result;
    for (const auto& list : {stem->parameters(), conv->parameters(), norm->parameters()}) {
      for (const torch::Tensor& parameter : list) {
        result.push_back(parameter.grad().clone());
        parameter.mutable_grad().reset();
      }
    }
    return result;
  };

  const auto plain = gradients(false), recomputed = gradients(true);
  bool equal = norm->num_batches_tracked.item<int64_t>() == 2;
  for (std::size_t i = 0; i < plain.size(); ++i) equal = equal && torch::equal(plain[i], recomputed[i]);
  std::cout << plain.size() << " gradients, " << (equal ? "equal to the bit" : "DIFFERENT") << "\n";
  return equal ? 0 : 1;
}
