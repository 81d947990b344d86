// SPDX-License-Identifier: Apache-2.0
// What the Trainer costs: its step with every policy at its default, against the same step written by hand (law 7), and
// against the usual one with a mean loss. A small model, so that what surrounds the kernels shows.
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/version.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "rounds.hpp"
#include "saturate/observe/op_counter.hpp"
#include "saturate/optim/adamw.hpp"
#include "saturate/trainer.hpp"

namespace {

namespace st = saturate;
constexpr int64_t batch_size = 128;
constexpr int64_t steps_per_round = 50;

using Batch = std::pair<at::Tensor, at::Tensor>;

torch::nn::Sequential make_model() {
  torch::manual_seed(0);
  return torch::nn::Sequential(torch::nn::Linear(784, 256), torch::nn::ReLU(), torch::nn::Linear(256, 10));
}

// A hand-written loop with a sum and a count, as whoever accumulates exactly would write it.
struct ByHand {
  torch::nn::Sequential model = make_model();
  st::optim::AdamW optimizer{model->parameters()};
  at::Tensor root = torch::scalar_tensor(1.0 / batch_size);

  void operator()(const Batch& batch) {
    const at::Tensor sum =
        at::cross_entropy_loss(model->forward(batch.first), batch.second, {}, at::Reduction::Sum, -100, 0.0);
    torch::autograd::backward({sum}, {root});
    loss = sum.tensor_data();
    optimizer.step();
    optimizer.zero_grad();
  }
  at::Tensor loss;
};

struct UsualMean {
  torch::nn::Sequential model = make_model();
  st::optim::AdamW optimizer{model->parameters()};

  void operator()(const Batch& batch) {
    const at::Tensor loss = torch::nn::functional::cross_entropy(model->forward(batch.first), batch.second);
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
  }
};

struct Side {
  std::string name;
  std::function<void(const Batch&)> step;
  std::string operators = {};  // how many, and a digest of their names in order
};

std::string operators_of(const Side& side, const Batch& batch) {
  side.step(batch);  // the first step makes the optimizer's state
  const st::OpCounter counter({.this_thread_only = true});
  side.step(batch);
  std::string all;
  for (const std::string& name : counter.operators()) all += name + " ";
  char text[64];
  std::snprintf(text, sizeof text, "%lld (%04zx)", static_cast<long long>(counter.total()),
                std::hash<std::string>{}(all)&0xffff);
  return text;
}

void take_round(const Side& side, const Batch& batch) {
  const double seconds = bench::seconds_of([&] {
    for (int64_t i = 0; i < steps_per_round; ++i) side.step(batch);
  });
  bench::print_sample(side.name, seconds, steps_per_round, ", \"count\": \"" + side.operators + "\"");
}

}  // namespace

int main() {
  const Batch batch{torch::randn({batch_size, 784}), torch::randint(10, {batch_size})};
  auto model = make_model();
  st::Trainer trainer(model, st::optim::AdamW(model->parameters()), st::CrossEntropy{.ignore_index = std::nullopt},
                      st::TrainerOptions{.device = c10::Device(c10::kCPU)});
  ByHand by_hand;
  UsualMean usual;
  std::vector<Side> sides{{"trainer", [&](const Batch& b) { trainer.step(b); }},
                          {"hand", [&](const Batch& b) { by_hand(b); }},
                          {"mean", [&](const Batch& b) { usual(b); }}};
  for (Side& side : sides) side.operators = operators_of(side, batch);

  const std::string shape = "784-256-10, batch 128, fused AdamW, " + std::to_string(at::get_num_threads()) +
                            " threads, LibTorch " TORCH_VERSION;
  bench::print_info("trainer", "Trainer, no policies, " + shape);
  bench::print_info("hand", "the same sum and count by hand, " + shape);
  bench::print_info("mean", "the usual mean loss by hand");
  bench::serve_rounds([&](int64_t n) {
    for (std::size_t i = 0; i < sides.size(); ++i) take_round(sides[(i + n) % sides.size()], batch);
  });
  return 0;
}
