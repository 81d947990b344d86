// SPDX-License-Identifier: Apache-2.0
// Data parallel training on two processes, started by torchrun, mpirun, srun, or by this program itself. Expected: both
// ranks have the same parameters, to the last bit, and they are those of one process that trains on all samples.
//
//   ./example_22_ddp                                                      # starts two ranks of its own
//   torchrun --no-python --nproc-per-node=2 ./example_22_ddp              # (python -m torch.distributed.run)
#include <torch/torch.h>

#include <iostream>

#include "saturate/saturate.hpp"

namespace st = saturate;
namespace dist = saturate::distributed;

using Batch = std::pair<torch::Tensor, torch::Tensor>;

// Rank r of R has samples r, r + R, r + 2R, ...
std::vector<Batch> batches_of(int rank, int ranks) {
  std::vector<Batch> batches;
  for (int64_t step = 0; step < 20; ++step) {
    torch::manual_seed(step);
    const torch::Tensor x = torch::randn({64, 16}), y = x.narrow(1, 0, 4).argmax(1);
    batches.emplace_back(x.slice(0, rank, c10::nullopt, ranks), y.slice(0, rank, c10::nullopt, ranks));
  }
  return batches;
}

// begin ddp
template <class... Policies>
torch::nn::Sequential train(const dist::ProcessGroup& group, Policies... policies) {
  torch::manual_seed(group.rank());  // rank 0's weights go to all
  torch::nn::Sequential net(torch::nn::Linear(16, 64), torch::nn::Tanh(), torch::nn::Linear(64, 4));
  st::Trainer trainer(net, st::optim::AdamW(net->parameters(), {.lr = 1e-2}), st::CrossEntropy{}, st::Ddp(group),
                      policies...);
  trainer.fit(batches_of(group.rank(), group.world_size()), {.epochs = 2});
  return net;
}
// end ddp

int run(const std::vector<std::string>& = {}) {
  torch::set_num_threads(1);
  const auto group = dist::ProcessGroup::from_environment();
  const auto net = train(group, st::ClipGradNorm{1.0});
  const auto alone = train(dist::ProcessGroup(), st::ClipGradNorm{1.0});  // every sample, in this process
  bool same = true, right = true;
  for (std::size_t i = 0; i < net->parameters().size(); ++i) {
    const torch::Tensor ours = net->parameters()[i].detach();
    const torch::Tensor all = group.all_gather(ours);
    for (int64_t rank = 0; rank < all.size(0); ++rank) same = same && torch::equal(all[rank], ours);
    right = right && torch::allclose(ours, alone->parameters()[i], 1e-3, 1e-5);
  }
  if (group.rank() == 0) {
    std::cout << group.world_size() << " ranks, " << group.backend_name() << ": parameters "
              << (same ? "equal on all ranks" : "differ between ranks") << ", "
              << (right ? "and those of one process" : "but not those of one process") << '\n';
  }
  group.barrier();
  return same && right ? 0 : 1;
}
const dist::SpawnEntry entry("ddp", &run);

int main(int argc, char** argv) {
  if (const auto code = dist::spawned_main(argc, argv)) return *code;
  if (std::getenv("RANK") != nullptr) return run();  // a launcher has started us
  bool ok = true;
  for (const dist::SpawnedRank& rank : dist::spawn(2, "ddp")) {
    std::cout << rank.output;
    ok = ok && rank.ok();
  }
  return ok ? 0 : 1;
}
