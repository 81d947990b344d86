// SPDX-License-Identifier: Apache-2.0
// Swaps one policy: the same model, data and seed, trained in float32 and then with bfloat16 and with float16
// autocast. Everything that differs is one argument of the Trainer. Which is fastest is up to the machine: without such
// numbers in hardware (AVX512-BF16, AMX, a GPU since Ampere) the narrow ones are several times slower.
// Expected: all losses are below 1.2 and lie within 10 % of each other.
#include <torch/torch.h>

#include <cmath>
#include <iostream>

#include "saturate/saturate.hpp"

namespace st = saturate;

struct NetImpl : torch::nn::Module {
  torch::nn::Conv2d conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 16, 5).stride(2)));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(16 * 12 * 12, 10));

  torch::Tensor forward(torch::Tensor x) {
    // st::call names the parts of the model; it forwards to conv->forward(x).
    x = torch::relu(st::call(conv, x)).flatten(1);
    return st::call(head, x);
  }
};
TORCH_MODULE(Net);

// begin swap
template <class Precision>
double train(const char* name, Precision precision) {
  torch::manual_seed(0);
  Net net;
  st::data::PrefetchLoader loader(st::data::IdxSource::fashion_mnist(st::data::Split::train),
                                  {.batch_size = 64, .shuffle = true, .seed = 1});
  st::Trainer trainer(net, st::optim::AdamW(net->parameters(), {.lr = 2e-3}), st::CrossEntropy{}, precision);
  trainer.fit(loader, {.log_every = 0, .max_windows = 10});  // warm-up, not timed
  const st::FitResult result = trainer.fit(loader, {.log_every = 0, .max_windows = 60});
  const st::Metrics metrics = trainer.evaluate(
      st::data::PrefetchLoader(st::data::IdxSource::fashion_mnist(st::data::Split::test), {.batch_size = 500}));
  std::cout << name << ": " << static_cast<int>(static_cast<double>(result.samples) / result.seconds)
            << " samples/s, test loss " << metrics.at("loss") << ", accuracy " << metrics.at("accuracy") << "\n";
  return metrics.at("loss");
}

int main() {
  const double fp32 = train("Fp32", st::Fp32{});
  const double bf16 = train("Bf16", st::Bf16{});
  const double fp16 = train("Fp16", st::Fp16{});  // with a GradScaler
  // end swap
  return fp32 < 1.2 && std::abs(bf16 / fp32 - 1) < 0.1 && std::abs(fp16 / fp32 - 1) < 0.1 ? 0 : 1;
}
