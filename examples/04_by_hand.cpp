// SPDX-License-Identifier: Apache-2.0
// A la carte: the parts of saturate in a loop of your own, without a Trainer. Each works alone.
// Expected: "step 200" with a mean loss below 0.8, and a test accuracy above 0.7.
#include <torch/torch.h>

#include <iostream>

#include "saturate/clip/clip_grad_norm.hpp"
#include "saturate/data/idx_source.hpp"
#include "saturate/data/prefetch_loader.hpp"
#include "saturate/optim/adamw.hpp"
#include "saturate/precision/autocast_scope.hpp"
#include "saturate/schedule/schedule.hpp"

namespace st = saturate;
namespace F = torch::nn::functional;

int main() {
  torch::manual_seed(0);
  torch::nn::Sequential net(torch::nn::Flatten(), torch::nn::Linear(784, 64), torch::nn::ReLU(),
                            torch::nn::Linear(64, 10));
  // begin by-hand
  st::data::PrefetchLoader loader(st::data::IdxSource::fashion_mnist(st::data::Split::train),
                                  {.batch_size = 64, .shuffle = true, .workers = 2});
  st::optim::AdamW optimizer(net->parameters(), {.lr = 3e-3});  // one fused kernel for all parameters
  const st::ClipGradNorm clip{.max_norm = 1.0};
  const st::WarmupCosine schedule{.warmup = 20, .total = 200};

  torch::Tensor total = torch::zeros({});
  int64_t step = 0;
  for (auto& batch : loader) {
    torch::Tensor loss;
    {
      // bfloat16 where it is worth it; `false` keeps float32. Ends before backward, and after an exception too.
      st::AutocastScope autocast(torch::kCPU, torch::kBFloat16, /*enabled=*/false);
      loss = F::cross_entropy(net->forward(batch.data()), batch.target());
    }
    loss.backward();
    auto gradients = std::vector<torch::Tensor>();
    for (const auto& parameter : optimizer.parameters()) gradients.push_back(parameter.grad());
    const st::ClipResult clipped = clip.clip(gradients);  // nothing is read on the host here ...
    // ... nor here: with an infinite or NaN norm the kernel leaves the weights as they are.
    optimizer.step({.lr_factor = schedule.factor(step), .found_inf = clipped.refused});
    optimizer.zero_grad();

    total += loss.detach();
    if (++step % 100 == 0) {
      std::cout << "step " << step << "  loss " << total.item<double>() / 100 << "\n";  // the one host read
      total.zero_();
    }
    if (step == schedule.total) break;  // the next loop over the loader starts a new epoch
  }
  // end by-hand

  const torch::NoGradGuard no_grad;
  st::data::PrefetchLoader test(st::data::IdxSource::fashion_mnist(st::data::Split::test), {.batch_size = 1000});
  double correct = 0;
  for (auto& batch : test) correct += (net->forward(batch.data()).argmax(1) == batch.target()).sum().item<double>();
  const double accuracy = correct / static_cast<double>(test.size());
  std::cout << "accuracy " << accuracy << "\n";
  return accuracy > 0.7 ? 0 : 1;
}
