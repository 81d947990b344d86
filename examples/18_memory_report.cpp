// SPDX-License-Identifier: Apache-2.0
// Where the memory of a training step goes: by kind, by phase, and by part of the model for what autograd keeps.
// Expected: gradients as large as the parameters and AdamW's state twice that, a peak that the kinds add up to, each
// block's activations by name; with the blocks recomputed, less than a third of the activations.
#include <torch/torch.h>

#include <iostream>
#include <string>

#include "saturate/saturate.hpp"

namespace st = saturate;

struct BlockImpl : torch::nn::Module {
  torch::nn::LayerNorm norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({64})));
  torch::nn::Linear up = register_module("up", torch::nn::Linear(64, 256));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(256, 64));
  torch::Tensor forward(const torch::Tensor& x) {
    return x + st::call(down, torch::gelu(st::call(up, st::call(norm, x))));
  }
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  torch::nn::ModuleList blocks = register_module("blocks", torch::nn::ModuleList());
  torch::nn::Linear head = register_module("head", torch::nn::Linear(64, 4));

  NetImpl() {
    for (int i = 0; i < 4; ++i) blocks->push_back(Block());
  }
  torch::Tensor forward(const torch::Tensor& x) { return st::call(head, st::call_each<BlockImpl>(blocks, x)); }
};
TORCH_MODULE(Net);

template <class... Recompute>
st::MemoryReport measure(Recompute... recompute) {
  torch::manual_seed(0);
  Net net;
  const torch::Tensor x = torch::randn({512, 64});
  const std::pair batch(x, x.narrow(1, 0, 4).argmax(1));
  // begin report
  st::Trainer trainer(net, st::optim::AdamW(net->parameters(), {.lr = 1e-3}), st::CrossEntropy{}, recompute...);
  trainer.step(batch);  // the first one makes the optimizer's state
  return st::measure_memory(trainer, batch);
  // end report
}

int main() {
  const st::MemoryReport report = measure();
  report.print(std::cout);
  report.save_snapshot("memory_snapshot.json");  // for programs; report.to_svg() is the step as a chart
  const bool same = st::MemoryReport::load_snapshot("memory_snapshot.json") == report;

  const auto& memory = report.memory();
  const int64_t parameters = memory.before[st::MemoryKind::parameters];
  const bool known = memory.peak[st::MemoryKind::gradients] == parameters &&
                     memory.before[st::MemoryKind::optimizer_state] == 2 * parameters &&
                     memory.at_peak.total() == report.timeline.peak_bytes() &&
                     report.module("blocks.3")->activations > 512 * 256 * 4;  // gelu's input, and more

  const st::MemoryReport recomputed = measure(st::Recompute::all());
  const int64_t plain = memory.peak[st::MemoryKind::activations];
  const int64_t less = recomputed.memory().peak[st::MemoryKind::activations];
  std::cout << "\nactivations: " << plain << " bytes; with Recompute::all(): " << less << "\n";
  return same && known && less < plain / 3 ? 0 : 1;
}
