// SPDX-License-Identifier: Apache-2.0
// How near a training step comes to what this machine can do: peaks that are measured, FLOPs that are counted, and the
// two utilizations, which differ where a forward is computed twice.
// Expected: the table of operators, MFU at most HFU, the two equal without recompute; with a block recomputed the
// hardware does more FLOPs than the model needs; the chart is written to roofline.svg.
#include <torch/torch.h>

#include <fstream>
#include <iostream>

#include "saturate/saturate.hpp"

namespace st = saturate;

struct BlockImpl : torch::nn::Module {
  torch::nn::Linear up = register_module("up", torch::nn::Linear(256, 1024));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(1024, 256));
  torch::Tensor forward(const torch::Tensor& x) { return torch::tanh(down(torch::gelu(up(x)))); }
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  torch::nn::ModuleList blocks = register_module("blocks", torch::nn::ModuleList(Block(), Block()));
  torch::Tensor forward(const torch::Tensor& x) { return st::call_each<BlockImpl>(blocks, x); }
};
TORCH_MODULE(Net);

template <class... Recompute>
st::Roofline measure(const st::Roofs& roofs, Recompute... recompute) {
  torch::manual_seed(0);
  Net net;
  const std::pair batch(torch::randn({512, 256}), torch::randint(256, {512}));
  // begin roofline
  st::Trainer trainer(net, st::optim::AdamW(net->parameters(), {.lr = 1e-3}), st::CrossEntropy{}, recompute...);
  for (int i = 0; i < 3; ++i) trainer.step(batch);  // warm
  st::Stopwatch watch;
  for (int i = 0; i < 5; ++i) trainer.step(batch);
  const double seconds = watch.seconds() / 5;  // without the counter, which costs time
  st::FlopCounter counter;
  trainer.step(batch);
  return st::make_roofline(counter.work(), roofs, seconds);
  // end roofline
}

int main() {
  // begin peaks
  const st::Peaks peaks = st::measure_peaks({.precisions = {"float32"}, .seconds = 2});
  std::cout << peaks.table() << '\n';
  const st::Roofs roofs = st::Roofs::of(peaks);  // or st::Roofs::of(*st::spec_peak("NVIDIA L4"))
  // end peaks

  const st::Roofline plain = measure(roofs);
  // begin report
  std::cout << plain.table(8) << '\n';
  std::ofstream("roofline.svg") << plain.to_svg();
  // end report
  const st::Roofline twice = measure(roofs, st::Recompute::all());
  std::cout << twice.table(8) << '\n' << st::read_gpu_states().table();

  const auto flops = [](const st::Roofline& roofline) { return roofline.step.work.flops; };
  const bool equal = plain.mfu() == plain.hfu() && *plain.mfu() > 0;
  const bool apart = *twice.mfu() < *twice.hfu() && flops(twice) > flops(plain);
  return equal && apart ? 0 : 1;
}
