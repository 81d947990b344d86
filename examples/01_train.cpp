// SPDX-License-Identifier: Apache-2.0
// The program of the README: trains a small CNN on Fashion-MNIST for one epoch.
// Expected: a line every 100 steps, and at the end an evaluation whose accuracy is above 0.85.
// begin train
#include <torch/torch.h>

#include "saturate/saturate.hpp"

namespace st = saturate;
using namespace torch::nn;

int main() {
  st::host_memory::keep_pages();
  torch::manual_seed(0);
  Sequential net(Conv2d(Conv2dOptions(1, 8, 3).padding(1)), ReLU(), MaxPool2d(2),
                 Conv2d(Conv2dOptions(8, 32, 3).padding(1)), ReLU(), MaxPool2d(2), Flatten(), Linear(32 * 7 * 7, 10));

  using st::data::IdxSource, st::data::Split;
  st::data::PrefetchLoader train(IdxSource::fashion_mnist(Split::train), {.batch_size = 128, .shuffle = true});
  st::data::PrefetchLoader test(IdxSource::fashion_mnist(Split::test), {.batch_size = 1000});

  st::Trainer trainer(net, st::optim::AdamW(net->parameters(), {.lr = 4e-3}), st::CrossEntropy{}, st::ChannelsLast{},
                      st::ClipGradNorm{1.0}, st::WarmupCosine{.warmup = 50, .total = 469}, st::Progress{});
  trainer.fit(train, test, {.epochs = 1, .log_every = 100});
}
// end train
