// SPDX-License-Identifier: Apache-2.0
// Trains on several ranks with checkpoints, and can kill one rank of itself in the first attempt; for
// tests/distributed/restart.py, which runs it under torchrun.
//
//   restart FOLDER OUTPUT [WINDOW]    kills rank 1 after window WINDOW when TORCHELASTIC_RESTART_COUNT is 0
//
// OUTPUT.<rank> gets the bytes of all parameters and buffers. A DistributedError ends the process with 75.
#include "saturate/averaging/ema.hpp"
#include "saturate/checkpoint.hpp"
#include "saturate/data/prefetch_loader.hpp"
#include "saturate/data/tensor_source.hpp"
#include "saturate/distributed/ddp.hpp"
#include "saturate/error.hpp"
#include "saturate/optim/adamw.hpp"
#include "saturate/schedule/schedule.hpp"
#include "saturate/trainer.hpp"

#include <torch/torch.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>

namespace st = saturate;
namespace dist = saturate::distributed;

namespace {

constexpr int64_t epochs = 3;

struct KillAfter {
  int64_t window;
  void on_step(const st::StepEvent& event) const {
    if (event.state.window == window) ::raise(SIGKILL);
  }
};

torch::nn::Sequential model() {
  torch::manual_seed(3);
  return torch::nn::Sequential(torch::nn::Linear(6, 16), torch::nn::BatchNorm1d(16), torch::nn::Tanh(),
                               torch::nn::Dropout(0.25), torch::nn::Linear(16, 4));
}

void write(const std::string& path, torch::nn::Sequential& net) {
  std::ofstream file(path, std::ios::binary);
  auto tensors = net->parameters();
  const auto buffers = net->buffers();
  tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  for (const at::Tensor& tensor : tensors) {
    file.write(static_cast<const char*>(tensor.contiguous().const_data_ptr()),
               static_cast<std::streamsize>(tensor.nbytes()));
  }
}

void train(const std::string& folder, const std::string& output, int64_t kill_after) {
  const auto group = dist::ProcessGroup::from_environment({.timeout = std::chrono::seconds(20)});
  torch::nn::Sequential net = model();
  const at::Tensor x = torch::randn({48, 6}), y = torch::randint(4, {48});
  st::data::PrefetchLoader loader(
      st::data::TensorSource(x, y),
      {.batch_size = 2, .shuffle = true, .seed = 4, .rank = group.rank(), .ranks = group.world_size()});
  st::Trainer trainer(net, st::optim::AdamW(net->parameters(), {.lr = 0.02}), st::CrossEntropy{}, st::Ddp(group),
                      st::Accumulate{2}, st::ClipGradNorm{1.0}, st::WarmupCosine{.warmup = 3, .total = 30},
                      st::Ema({.decay = 0.9}), st::Checkpoint({.folder = folder, .every = 3}),
                      KillAfter{group.rank() == 1 ? kill_after : -1});
  torch::manual_seed(100 + group.rank());
  if (const auto from = st::resume(trainer, loader, folder)) {
    std::cout << "rank " << group.rank() << " resumed at window " << from->window << std::endl;
  }
  const int64_t left = epochs - trainer.state().epoch;
  if (left > 0) trainer.fit(loader, {.epochs = left});
  std::cout << "rank " << group.rank() << " done at window " << trainer.state().window << std::endl;
  write(output + "." + std::to_string(group.rank()), net);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "restart FOLDER OUTPUT [WINDOW]" << std::endl;
    return 2;
  }
  at::set_num_threads(1);
  const char* attempt = std::getenv("TORCHELASTIC_RESTART_COUNT");
  const bool first = attempt == nullptr || std::string(attempt) == "0";
  try {
    train(argv[1], argv[2], first && argc > 3 ? std::stoll(argv[3]) : -1);
  } catch (const st::DistributedError& error) {
    std::cerr << error.what() << std::endl;
    return 75;  // the launcher starts all ranks again
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
  return 0;
}
