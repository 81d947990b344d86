// SPDX-License-Identifier: Apache-2.0
// Averaged weights: with a large learning rate SGD's weights jump around the best ones; their average does not.
// Expected: on held-out data the averages have less than two thirds of the excess loss of the weights that they
// average, in a loop by hand and with the Trainer alike, and afterwards the model has its own weights again.
#include <torch/torch.h>

#include <functional>
#include <iostream>
#include <utility>
#include <vector>

#include "saturate/averaging/ema.hpp"
#include "saturate/optim/sgd.hpp"
#include "saturate/trainer.hpp"

namespace st = saturate;
using Batches = std::vector<std::pair<torch::Tensor, torch::Tensor>>;

// A linear function and noise of variance 1: no model has a loss below about 1.
Batches noisy_batches(int64_t batches, int64_t seed) {
  torch::manual_seed(seed);
  const auto weights = torch::linspace(-1, 1, 16).unsqueeze(1);
  Batches result;
  for (int64_t i = 0; i < batches; ++i) {
    const auto x = torch::randn({8, 16});
    result.emplace_back(x, x.mm(weights) + torch::randn({8, 1}));
  }
  return result;
}

double loss_of(torch::nn::Linear& net, const Batches& data) {
  const torch::NoGradGuard no_grad;
  double sum = 0;
  for (const auto& [x, y] : data) sum += torch::mse_loss(net(x), y).item<double>();
  return sum / static_cast<double>(data.size());
}

bool report(const char* name, double own, double averaged) {
  std::cout << name << ": loss " << own << " with the weights, " << averaged << " with their averages\n";
  return averaged < own - 0.1;
}

bool by_hand(const Batches& data, const Batches& held_out) {
  torch::nn::Linear net(16, 1);
  // begin by-hand
  st::optim::SGD optimizer(net->parameters(), {.lr = 0.1});
  st::Ema ema(*net, {.decay = 0.99, .warmup = true});
  for (const auto& [x, y] : data) {
    torch::mse_loss(net(x), y).backward();
    optimizer.step();
    optimizer.zero_grad();
    ema.update();  // with a clipping or a scaler: ema.update(refused)
  }
  double averaged = 0;
  {
    const auto scope = ema.scope();  // the model holds the averages ...
    averaged = loss_of(net, held_out);
  }  // ... and its own weights again, after an exception too
  // end by-hand
  return report("by hand", loss_of(net, held_out), averaged);
}

bool with_trainer(const Batches& data, const Batches& held_out) {
  torch::nn::Linear net(16, 1);
  // begin trainer
  st::Ema ema({.decay = 0.99, .warmup = true});
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::MSE{}, std::ref(ema),
                      st::TrainerOptions{.device = torch::kCPU});
  trainer.fit(data, held_out);  // evaluations use the averages
  const double averaged = trainer.evaluate(held_out).at("loss");
  const st::AveragedState state = ema.state();  // by name, to be saved beside the model
  // end trainer
  std::cout << state.type << " after " << state.steps << " steps\n";
  return report("Trainer", loss_of(net, held_out), averaged);
}

int main() {
  const Batches data = noisy_batches(500, 1), held_out = noisy_batches(200, 2);
  const bool good = by_hand(data, held_out);
  return with_trainer(data, held_out) && good ? 0 : 1;
}
