// SPDX-License-Identifier: Apache-2.0
// What forward saves for backward, kept in less memory: Offload lets it wait in host memory, CompressSaved keeps it in
// half the bytes. Expected: with Offload the same loss to the last bit; with CompressSaved the same first loss, later
// ones within 1 %, and half the activation bytes. Offload needs a GPU; without one its stand-in for tests shows what
// would be moved.
#include <torch/torch.h>

#include <cmath>
#include <iostream>
#include <vector>

#include "saturate/saturate.hpp"

namespace st = saturate;

struct BlockImpl : torch::nn::Module {
  torch::nn::LayerNorm norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({64})));
  torch::nn::Linear up = register_module("up", torch::nn::Linear(64, 256));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(256, 64));
  torch::Tensor forward(const torch::Tensor& x) {
    return x + down->forward(torch::gelu(up->forward(norm->forward(x))));
  }
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  torch::nn::ModuleList blocks = register_module("blocks", torch::nn::ModuleList());
  torch::nn::Linear head = register_module("head", torch::nn::Linear(64, 4));

  NetImpl() {
    for (int i = 0; i < 8; ++i) blocks->push_back(Block());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return head->forward(st::call_each<BlockImpl>(blocks, x));  // what Offload fetches together
  }
};
TORCH_MODULE(Net);

template <class... Policy>
std::vector<double> train(const char* name, Policy... policy) {
  torch::manual_seed(0);
  Net net;
  st::Trainer trainer(net, st::optim::AdamW(net->parameters(), {.lr = 1e-3}), st::CrossEntropy{}, policy...);
  const torch::Tensor x = torch::randn({256, 64});
  const std::pair batch(x, x.narrow(1, 0, 4).argmax(1));
  std::vector<double> losses;
  for (int i = 0; i < 10; ++i) losses.push_back(trainer.step(batch).loss());
  std::cout << name << ": loss " << losses.front() << " to " << losses.back() << "\n";
  return losses;
}

int main() {
  // begin offload
  const bool gpu = torch::cuda::is_available();
  st::Offload offload({.min_bytes = 64 << 10, .to = gpu ? st::OffloadTo::pinned_host : st::OffloadTo::cpu_copy});
  const auto moved = train("Offload", offload);
  const st::SavedCounts there = offload.counts();  // copies of the policy count together
  // end offload
  // begin compress
  st::CompressSaved compress{at::kBFloat16};  // or at::kHalf
  const auto rounded = train("CompressSaved", compress);
  const st::SavedCounts small = compress.counts();
  // end compress
  const auto plain = train("plain", st::NoRecompute{});
  std::cout << "Offload: " << there.moved_tensors / 10 << " tensors a step, " << there.peak_stored_bytes / 1024
            << " KiB at once, " << there.fetched_ahead << " of " << there.fetched << " fetched ahead\n"
            << "CompressSaved: " << small.moved_bytes / 10 / 1024 << " KiB a step in " << small.peak_stored_bytes / 1024
            << " KiB\n";
  const bool close = std::abs(rounded.back() - plain.back()) < 0.01 * plain.back();
  const bool half = small.peak_stored_bytes * 2 * 10 == small.moved_bytes;
  return moved == plain && rounded[0] == plain[0] && rounded != plain && close && half && there.moved_bytes > 0 ? 0 : 1;
}
