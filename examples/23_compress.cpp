// SPDX-License-Identifier: Apache-2.0
// Gradients that cross the network in half the bytes, or in a few: communication hooks of data parallel training.
// Expected: FP16 compression sends half the bytes of plain training and PowerSGD less than a quarter; both learn.
#include <torch/torch.h>

#include <iostream>

#include "saturate/saturate.hpp"

namespace st = saturate;
namespace dist = saturate::distributed;

struct Result {
  double loss = 0;
  int64_t bytes = 0;
};

Result train(const dist::ProcessGroup& group, std::shared_ptr<dist::CommHook> hook) {
  torch::manual_seed(0);
  torch::nn::Sequential net(torch::nn::Linear(64, 256), torch::nn::Tanh(), torch::nn::Linear(256, 8));
  // begin hook
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.2, .momentum = 0.9}), st::CrossEntropy{},
                      st::Ddp(group, {.hook = hook}));
  // end hook
  Result result;
  for (int64_t step = 0; step < 60; ++step) {
    torch::manual_seed(step * group.world_size() + group.rank());
    const torch::Tensor x = torch::randn({64, 64});
    result.loss = trainer.step(std::pair(x, x.narrow(1, 0, 8).argmax(1))).loss();
  }
  for (const int64_t bytes : trainer.policy<st::Ddp>().ddp().bucket_bytes()) result.bytes += bytes;
  dist::Bucket whole{.gradients = torch::empty({result.bytes / 4})};
  for (const torch::Tensor& parameter : net->parameters()) {
    whole.parameters.push_back(parameter);
    whole.views.push_back(torch::empty_like(parameter));
  }
  result.bytes = hook->bytes_sent(whole);
  return result;
}

int run(const std::vector<std::string>&) {
  torch::set_num_threads(1);
  const auto group = dist::ProcessGroup::from_environment();
  const Result plain = train(group, std::make_shared<dist::AllReduce>());
  const Result half = train(group, std::make_shared<dist::Fp16Compress>());
  const Result low_rank =
      train(group, std::make_shared<dist::PowerSgd>(dist::PowerSgdOptions{.rank = 2, .start_step = 5}));
  if (group.rank() == 0) {
    std::cout << "all_reduce: " << plain.bytes << " bytes a step, loss " << plain.loss << "\nfp16: " << half.bytes
              << " bytes, loss " << half.loss << "\nPowerSGD: " << low_rank.bytes << " bytes, loss " << low_rank.loss
              << '\n';
  }
  group.barrier();
  const bool fewer = half.bytes * 2 == plain.bytes && low_rank.bytes * 4 < plain.bytes;
  return fewer && half.loss < 1.2 * plain.loss && low_rank.loss < 1.5 * plain.loss ? 0 : 1;
}
const dist::SpawnEntry entry("compress", &run);

int main(int argc, char** argv) {
  if (const auto code = dist::spawned_main(argc, argv)) return *code;
  bool ok = true;
  for (const dist::SpawnedRank& rank : dist::spawn(2, "compress")) {
    std::cout << rank.output;
    ok = ok && rank.ok();
  }
  return ok ? 0 : 1;
}
