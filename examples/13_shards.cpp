// SPDX-License-Identifier: Apache-2.0
// Trains on JPEGs in tar shards, stops in the middle of the epoch, and goes on in another loader where that one was.
// The shards are Fashion-MNIST's test images, packed by the program make_shards (the test of this example calls it):
//
//   make_shards shards/fashion-%03d.tar --images /usr/share/datasets/fashion-mnist/t10k-images-idx3-ubyte.gz
//     --labels /usr/share/datasets/fashion-mnist/t10k-labels-idx1-ubyte.gz --samples-per-shard 2500 --shuffle 1
//   example_13_shards 'shards/fashion-{000..003}.tar'
//
// Expected: what the loader can deliver and what limits it, 10,000 samples read in two parts, each once, and a mean
// loss of the second part below 1.
#include <torch/torch.h>

#include <cstdio>
#include <iostream>
#include <numeric>
#include <vector>

#include "saturate/saturate.hpp"

namespace st = saturate;
using namespace torch::nn;

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::cerr << "usage: example_13_shards 'shards/fashion-{000..003}.tar'\n";
    return 2;
  }
  st::host_memory::keep_pages();
  torch::manual_seed(0);
  const st::data::ImageSource images(
      st::data::TarShards(argv[1]),
      {.height = 28, .width = 28, .flip = 0.5, .mean = {0.286}, .std = {0.353}, .channels = 1});
  const st::data::LoaderOptions options{
      .batch_size = 100, .shuffle = true, .seed = 1, .workers = st::data::auto_workers, .prefetch = 8};
  {
    st::data::PrefetchLoader loader(images, options);
    std::cout << st::data::loader_ceiling(loader, 0.5).words() << '\n';
  }

  Sequential net(Conv2d(Conv2dOptions(1, 16, 3).padding(1)), ReLU(), MaxPool2d(2), Flatten(), Linear(16 * 14 * 14, 10));
  st::Trainer trainer(net, st::optim::AdamW(net->parameters(), {.lr = 2e-3}), st::CrossEntropy{});
  int64_t seen = 0;
  const auto train = [&](auto& loader, int64_t steps) {
    double sum = 0;
    int64_t done = 0;
    for (auto& batch : loader) {
      sum += trainer.step(batch).loss();
      seen += batch.size();
      if (++done == steps) break;
    }
    return sum / static_cast<double>(done);
  };

  st::data::PrefetchLoader first(images, options);
  const double first_loss = train(first, 60);
  const std::string saved = first.state().text();  // a line of text, to be kept beside the weights
  std::cout << saved << '\n';

  st::data::LoaderOptions others = options;
  others.workers = 2;  // may differ; the samples and their augmentation do not
  st::data::PrefetchLoader second(images, others);
  second.load_state(st::data::LoaderState::parse(saved));
  const double second_loss = train(second, -1);

  std::printf("%lld samples; loss %.3f, then %.3f\n", static_cast<long long>(seen), first_loss, second_loss);
  return seen == images.size() && second_loss < 1 && second.state().epoch == 1 ? 0 : 1;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
