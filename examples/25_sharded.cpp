// SPDX-License-Identifier: Apache-2.0
// Optimizer state spread over the ranks that train together. Expected: each of two ranks keeps half of AdamW's moments,
// and the parameters are those of the run that keeps all of them on every rank, to the last bit.
//
//   ./example_25_sharded                                                      # starts two ranks of its own
//   torchrun --no-python --nproc-per-node=2 ./example_25_sharded
#include <torch/torch.h>

#include <iostream>

#include "saturate/saturate.hpp"

namespace st = saturate;
namespace dist = saturate::distributed;

using Batch = std::pair<torch::Tensor, torch::Tensor>;

// Rank r of R has samples r, r + R, r + 2R, ...
std::vector<Batch> batches_of(const dist::ProcessGroup& group) {
  std::vector<Batch> batches;
  for (int64_t step = 0; step < 20; ++step) {
    torch::manual_seed(step);
    const torch::Tensor x = torch::randn({64, 32}), y = x.narrow(1, 0, 4).argmax(1);
    batches.emplace_back(x.slice(0, group.rank(), c10::nullopt, group.world_size()),
                         y.slice(0, group.rank(), c10::nullopt, group.world_size()));
  }
  return batches;
}

struct Run {
  std::vector<torch::Tensor> parameters;
  int64_t state_bytes;  // on this rank
};

Run train(const dist::ProcessGroup& group, bool sharded) {
  torch::manual_seed(0);
  torch::nn::Sequential net;
  for (int i = 0; i < 4; ++i) {
    net->push_back(torch::nn::Linear(32, 32));
    net->push_back(torch::nn::Tanh());
  }
  net->push_back(torch::nn::Linear(32, 4));
  const auto fit = [&](auto optimizer) {
    st::Trainer trainer(net, std::move(optimizer), st::CrossEntropy{}, st::Ddp(group), st::ClipGradNorm{1.0});
    trainer.fit(batches_of(group), {.epochs = 2});
    return Run{net->parameters(), trainer.optimizer().state_bytes().now};
  };
  if (!sharded) return fit(st::optim::AdamW(net->parameters(), {.lr = 1e-2}));
  // begin sharded
  dist::ShardedOptimizer optimizer(group, net->parameters(),
                                   [](auto params) { return st::optim::AdamW(std::move(params), {.lr = 1e-2}); });
  // end sharded
  return fit(std::move(optimizer));
}

int run(const std::vector<std::string>& = {}) {
  torch::set_num_threads(1);
  const auto group = dist::ProcessGroup::from_environment();
  const Run ours = train(group, true), whole = train(group, false);
  bool same = true;
  for (std::size_t i = 0; i < ours.parameters.size(); ++i) {
    same = same && torch::equal(ours.parameters[i], whole.parameters[i]);
  }
  const double share = static_cast<double>(ours.state_bytes) / static_cast<double>(whole.state_bytes);
  if (group.rank() == 0) {
    std::cout << group.world_size() << " ranks: " << ours.state_bytes << " bytes of optimizer state on this one, "
              << share << " of " << whole.state_bytes << "; parameters are "
              << (same ? "the same" : "not those of the run without sharding") << '\n';
  }
  group.barrier();
  return same && share < 1.2 / group.world_size() ? 0 : 1;
}
const dist::SpawnEntry entry("sharded", &run);

int main(int argc, char** argv) {
  if (const auto code = dist::spawned_main(argc, argv)) return *code;
  if (std::getenv("RANK") != nullptr) return run();  // a launcher has started us
  bool ok = true;
  for (const dist::SpawnedRank& rank : dist::spawn(2, "sharded")) {
    std::cout << rank.output;
    ok = ok && rank.ok();
  }
  return ok ? 0 : 1;
}
