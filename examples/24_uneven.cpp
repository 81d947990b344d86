// SPDX-License-Identifier: Apache-2.0
// Ranks with different numbers of batches: refused with a sentence, or joined. Expected: both ranks of the joined run
// take five steps, though one of them has two batches only.
#include <torch/torch.h>

#include <iostream>

#include "saturate/saturate.hpp"

namespace st = saturate;
namespace dist = saturate::distributed;

int run(const std::vector<std::string>&) {
  torch::set_num_threads(1);
  const auto group = dist::ProcessGroup::from_environment();
  torch::manual_seed(0);
  torch::nn::Linear net(8, 3);
  const torch::Tensor x = torch::randn({16, 8});
  const std::vector batches(group.rank() == 0 ? 5 : 2, std::pair(x, x.narrow(1, 0, 3).argmax(1)));
  const auto train = [&](st::UnevenInputs uneven) {
    // begin uneven
    st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{},
                        st::Ddp(group, {}, uneven));
    return trainer.fit(batches);
    // end uneven
  };
  bool refused = false;
  try {
    train(st::UnevenInputs::refuse);
  } catch (const st::ConfigError& error) {
    refused = true;
    if (group.rank() == 0) std::cout << error.what() << '\n';
  }
  const st::FitResult result = train(st::UnevenInputs::join);
  std::cout << "rank " << group.rank() << ": " << batches.size() << " batches, " << result.steps << " steps\n";
  group.barrier();
  return refused && result.steps == 5 ? 0 : 1;
}
const dist::SpawnEntry entry("uneven", &run);

int main(int argc, char** argv) {
  if (const auto code = dist::spawned_main(argc, argv)) return *code;
  bool ok = true;
  for (const dist::SpawnedRank& rank : dist::spawn(2, "uneven")) {
    std::cout << rank.output;
    ok = ok && rank.ok();
  }
  return ok ? 0 : 1;
}
