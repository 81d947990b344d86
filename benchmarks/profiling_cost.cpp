// SPDX-License-Identifier: Apache-2.0
// What ProfileWindow costs: between its windows, against no callback; and a recorded step, with the recording's start
// and its conversion to a Trace, in windows of two steps. A small model, so that what surrounds the kernels shows.
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
#include "saturate/observe/profile.hpp"
#include "saturate/optim/adamw.hpp"
#include "saturate/trainer.hpp"

namespace {

namespace st = saturate;
constexpr int64_t batch_size = 128;
constexpr int64_t steps_per_round = 50;

using Batches = std::vector<std::pair<at::Tensor, at::Tensor>>;

/// A Trainer with its model; `callbacks` watch its fits.
template <class... Callbacks>
std::function<void(Batches&)> fit_with(Callbacks... callbacks) {
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(784, 256), torch::nn::ReLU(), torch::nn::Linear(256, 10));
  auto trainer =
      std::make_shared<st::Trainer<torch::nn::Sequential, st::CrossEntropy, st::TrainerOptions, Callbacks...>>(
          model, st::optim::AdamW(model->parameters()), st::CrossEntropy{.ignore_index = std::nullopt},
          st::TrainerOptions{.device = c10::Device(c10::kCPU)}, std::move(callbacks)...);
  return [trainer](Batches& batches) { trainer->fit(batches, {.epochs = 1, .log_every = 1'000'000}); };
}

struct Side {
  std::string name;
  std::function<void(Batches&)> fit;
  std::string operators = {};  // how many, and a digest of their names in order
};

std::string operators_of(const Side& side, Batches& batches) {
  const st::OpCounter counter({.this_thread_only = true});
  side.fit(batches);
  std::string all;
  for (const std::string& name : counter.operators()) all += name + " ";
  char text[64];
  std::snprintf(text, sizeof text, "%lld (%04zx)", static_cast<long long>(counter.total()),
                std::hash<std::string>{}(all)&0xffff);
  return text;
}

void take_round(const Side& side, Batches& batches) {
  const double seconds = bench::seconds_of([&] { side.fit(batches); });
  bench::print_sample(side.name, seconds, steps_per_round, ", \"count\": \"" + side.operators + "\"");
}

}  // namespace

int main() {
  Batches batches;
  for (int64_t i = 0; i < steps_per_round; ++i) {
    batches.emplace_back(torch::randn({batch_size, 784}), torch::randint(10, {batch_size}));
  }
  int64_t events = 0;
  const auto count = [&](const st::Trace& trace) { events += static_cast<int64_t>(trace.events.size()); };
  // One window in the first fit, which is the warm-up, and none in the life of this program after it.
  st::ProfileWindow waiting({.skip = 10, .repeat_every = int64_t{1} << 40}, count);
  st::ProfileWindow always({.skip = 0, .warmup = 0, .record = 2, .repeat_every = 2}, count);
  std::vector<Side> sides{
      {"plain", fit_with()}, {"between", fit_with(std::ref(waiting))}, {"recorded", fit_with(std::ref(always))}};
  for (Side& side : sides) {
    side.fit(batches);
    side.operators = operators_of(side, batches);
  }
  const std::string shape = "784-256-10, batch 128, fused AdamW, " + std::to_string(at::get_num_threads()) +
                            " threads, LibTorch " TORCH_VERSION;
  bench::print_info("plain", "Trainer without callbacks, " + shape);
  bench::print_info("between", "ProfileWindow between two windows, " + shape);
  bench::print_info("recorded", "every step recorded in windows of 2, " +
                                    std::to_string(events / (2 * steps_per_round)) + " events a step, " + shape);
  bench::serve_rounds([&](int64_t n) {
    for (std::size_t i = 0; i < sides.size(); ++i) take_round(sides[(i + n) % sides.size()], batches);
  });
  return 0;
}
