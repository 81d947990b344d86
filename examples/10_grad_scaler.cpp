// SPDX-License-Identifier: Apache-2.0
// A la carte: float16 autocast and a GradScaler in a loop of your own, as torch.amp has them in Python.
// Expected: "scale" ends above 1, some step is taken, and the last loss is below 1.2.
#include <torch/torch.h>

#include <iostream>

#include "saturate/clip/clip_grad_norm.hpp"
#include "saturate/data/idx_source.hpp"
#include "saturate/data/prefetch_loader.hpp"
#include "saturate/optim/adamw.hpp"
#include "saturate/precision/autocast_scope.hpp"
#include "saturate/precision/grad_scaler.hpp"

namespace st = saturate;
namespace F = torch::nn::functional;

int main() {
  torch::manual_seed(0);
  const torch::Device device(torch::cuda::is_available() ? torch::kCUDA : torch::kCPU);
  torch::nn::Sequential net(torch::nn::Flatten(), torch::nn::Linear(784, 64), torch::nn::ReLU(),
                            torch::nn::Linear(64, 10));
  net->to(device);
  st::data::PrefetchLoader loader(st::data::IdxSource::fashion_mnist(st::data::Split::train),
                                  {.batch_size = 64, .shuffle = true, .workers = 1, .device = device});
  // begin scaler
  st::optim::AdamW optimizer(net->parameters(), {.lr = 3e-3});
  st::GradScaler scaler;
  double last = 0;
  int64_t step = 0;
  for (auto& batch : loader) {
    torch::Tensor loss;
    {
      st::AutocastScope autocast(device.type(), torch::kHalf);
      loss = F::cross_entropy(net->forward(batch.data()), batch.target());
    }
    scaler.scale(loss).backward();
    scaler.unscale_(optimizer);  // only to clip; step() does it otherwise
    std::vector<torch::Tensor> gradients = optimizer.gradients();
    st::ClipGradNorm{1.0}.clip(gradients);
    scaler.step(optimizer);  // leaves the weights alone when a gradient is inf or NaN, without a host read
    scaler.update();
    optimizer.zero_grad();
    if (++step == 100) {
      last = loss.item<double>();
      break;
    }
  }
  std::cout << "scale " << scaler.get_scale() << ", loss " << last << "\n";
  // end scaler
  return scaler.get_scale() > 1 && last < 1.2 ? 0 : 1;
}
