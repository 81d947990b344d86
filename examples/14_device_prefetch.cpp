// SPDX-License-Identifier: Apache-2.0
// Pixels go to the device as uint8, a quarter of the bytes, and one kernel crops, flips and normalizes them there, on
// the stream that copies the next batch while this one trains. Without a GPU the same runs in the loader's workers.
//
// Expected: batches of float32 [32, 3, 32, 32], channels-last, on the device; the same values as the same crops and
// flips computed here, bit for bit; a loss that falls.
#include <torch/torch.h>

#include <cstdio>
#include <iostream>
#include <vector>

#include "saturate/saturate.hpp"

namespace st = saturate;
using namespace torch::nn;

int main() {
  torch::manual_seed(0);
  const c10::Device device = torch::cuda::is_available() ? at::kCUDA : at::kCPU;
  // Two kinds of pictures: noise, and noise that is brighter.
  const at::Tensor labels = torch::randint(0, 2, {640}, at::kLong);
  const at::Tensor pixels = (torch::rand({640, 3, 40, 40}) * 200 + 40 * labels.view({-1, 1, 1, 1})).to(at::kByte);

  const st::data::CropFlipNormalize finish(
      {.height = 32, .width = 32, .flip = 0.5, .mean = {0.485, 0.456, 0.406}, .std = {0.229, 0.224, 0.225}});
  const st::data::LoaderOptions options{
      .batch_size = 32, .shuffle = true, .seed = 3, .workers = 1, .device = device, .transform = finish};
  st::data::PrefetchLoader loader(st::data::TensorSource(pixels, labels), options);

  // By hand: position p of epoch 0 holds sample order[p], and its crop is a function of (seed, epoch, position).
  const auto order = st::data::epoch_order(640, true, 3, 0);
  std::vector<st::data::SampleAt> at;
  for (int64_t p = 0; p < 32; ++p) at.emplace_back(order[static_cast<std::size_t>(p)], 3, 0, p);
  const at::Tensor by_hand = finish.apply(pixels.index_select(0, torch::tensor(order).slice(0, 0, 32)), at);

  Sequential net(Conv2d(3, 8, 3), ReLU(), AdaptiveAvgPool2d(1), Flatten(), Linear(8, 2));
  net->to(device);
  st::Trainer trainer(net, st::optim::AdamW(net->parameters(), {.lr = 1e-2}), st::CrossEntropy{}, st::ChannelsLast{});
  bool same = false;
  double first = 0, last = 0;
  for (int epoch = 0; epoch < 5; ++epoch) {
    bool begins = true;
    for (auto& batch : loader) {
      if (epoch == 0 && begins) same = batch.data().cpu().equal(by_hand);
      last = trainer.step(batch).loss();
      if (epoch == 0 && begins) first = last;
      begins = false;
    }
  }
  std::printf("on %s; %s by hand; loss %.3f -> %.3f\n", device.str().c_str(), same ? "the same as" : "NOT the same as",
              first, last);
  const auto stats = loader.stats();
  std::printf("waited %.1f ms for %lld batches; copies took the device %.1f ms\n", 1e3 * stats.wait_seconds,
              static_cast<long long>(stats.batches), 1e3 * stats.copy_seconds);
  return same && last < first ? 0 : 1;
}
