// SPDX-License-Identifier: Apache-2.0
// saturate::optim::AdamW against torch::optim::AdamW, in one process: optimizers COUNT SIZE (tensors, elements each).
#include <torch/optim/adamw.h>
#include <torch/version.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "rounds.hpp"
#include "saturate/optim/adamw.hpp"

namespace {

constexpr int64_t steps_per_round = 5;

// Parameters with gradients that stay: both sides see the same ones in every step.
std::vector<at::Tensor> make_parameters(int64_t count, int64_t size) {
  torch::manual_seed(0);
  std::vector<at::Tensor> parameters;
  for (int64_t i = 0; i < count; ++i) {
    parameters.push_back(torch::randn({size}).requires_grad_());
    parameters.back().mutable_grad() = torch::randn({size});
  }
  return parameters;
}

template <class Optimizer>
void take_round(const char* side, Optimizer& optimizer) {
  const double seconds = bench::seconds_of([&] {
    for (int64_t i = 0; i < steps_per_round; ++i) optimizer.step();
  });
  bench::print_sample(side, seconds, steps_per_round);
}

// The same numbers, or the comparison is worth nothing.
bool same(const std::vector<at::Tensor>& ours, const std::vector<at::Tensor>& theirs) {
  for (std::size_t i = 0; i < ours.size(); ++i) {
    if (!at::allclose(ours[i], theirs[i], 1e-5, 1e-6)) return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t count = argc > 1 ? std::atoll(argv[1]) : 20;
  const int64_t size = argc > 2 ? std::atoll(argv[2]) : 1000000;
  auto our_parameters = make_parameters(count, size);
  auto their_parameters = make_parameters(count, size);
  saturate::optim::AdamW ours(our_parameters, saturate::optim::AdamWOptions{.lr = 1e-3});
  torch::optim::AdamW theirs(their_parameters, torch::optim::AdamWOptions(1e-3));

  const std::string shape = std::to_string(count) + " x " + std::to_string(size) + ", float32, lr 1e-3, " +
                            std::to_string(at::get_num_threads()) + " threads";
  bench::print_info("saturate", "optim::AdamW, " + shape);
  bench::print_info("torch", "torch::optim::AdamW of LibTorch " TORCH_VERSION ", " + shape);
  bench::serve_rounds([&](int64_t n) {
    // The side that goes first takes turns.
    if (n % 2 == 0) take_round("saturate", ours);
    take_round("torch", theirs);
    if (n % 2 == 1) take_round("saturate", ours);
  });
  if (!same(our_parameters, their_parameters)) {
    std::fputs("optimizers: the two sides ended with different parameters\n", stderr);
    return 1;
  }
  return 0;
}
