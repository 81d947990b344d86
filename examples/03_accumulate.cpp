// SPDX-License-Identifier: Apache-2.0
// A window of micro-batches gives the gradient of the whole batch, however it is split: here 64 samples in unequal
// parts, a third of whose targets are ignored, one part altogether. Plain SGD with a learning rate of 1 shows the
// gradient as the change of the weights. Expected: the difference from the whole batch is below 1e-12 for Accumulate,
// and above 0.01 for the mean of means that a loop with `loss / k` computes.
#include <torch/torch.h>

#include <iostream>
#include <vector>

#include "saturate/saturate.hpp"

namespace st = saturate;
using Batch = std::pair<torch::Tensor, torch::Tensor>;
using Window = std::vector<Batch>;

torch::nn::Sequential make_net() {
  torch::manual_seed(0);
  torch::nn::Sequential net(torch::nn::Linear(20, 16), torch::nn::Tanh(), torch::nn::Linear(16, 10));
  net->to(torch::kDouble);
  return net;
}

torch::Tensor flat(const torch::nn::Sequential& net) {
  return torch::nn::utils::parameters_to_vector(net->parameters()).detach().clone();
}

// begin exact
/// The gradient that one step of the Trainer takes for this window.
torch::Tensor gradient(const Window& window) {
  auto net = make_net();
  const torch::Tensor before = flat(net);
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 1.0}), st::CrossEntropy{.ignore_index = -100},
                      st::Accumulate{5}, st::TrainerOptions{.device = torch::kCPU});
  trainer.step(window);
  return before - flat(net);
}
// end exact

/// What a loop gets that backpropagates the mean loss of each micro-batch, divided by their number.
torch::Tensor mean_of_means(const Window& window) {
  auto net = make_net();
  for (const auto& [x, y] : window) {
    if (!(y != -100).any().item<bool>()) continue;  // its mean is NaN
    (torch::nn::functional::cross_entropy(net->forward(x), y) / static_cast<double>(window.size())).backward();
  }
  std::vector<torch::Tensor> gradients;
  for (const auto& parameter : net->parameters()) gradients.push_back(parameter.grad().flatten());
  return torch::cat(gradients);
}

int main() {
  torch::manual_seed(1);
  const torch::Tensor x = torch::randn({64, 20}, torch::kDouble);
  torch::Tensor y = torch::randint(10, {64});
  y.masked_fill_(torch::rand({64}) < 0.33, -100);
  y.slice(0, 20, 21).fill_(-100);  // the third micro-batch has nothing to learn from

  Window window;
  int64_t begin = 0;
  for (const int64_t size : {13, 7, 1, 30, 13}) {
    window.emplace_back(x.slice(0, begin, begin + size), y.slice(0, begin, begin + size));
    begin += size;
  }
  const torch::Tensor whole = gradient({{x, y}});
  const auto off = [&](const torch::Tensor& g) { return ((g - whole).norm() / whole.norm()).item<double>(); };
  const double exact = off(gradient(window)), naive = off(mean_of_means(window));
  std::cout << "relative difference from the whole batch: Accumulate " << exact << ", mean of means " << naive << "\n";
  return exact < 1e-12 && naive > 0.01 ? 0 : 1;
}
