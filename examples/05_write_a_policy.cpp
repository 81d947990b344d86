// SPDX-License-Identifier: Apache-2.0
// Two policies of your own: a schedule, and a rule for gradients on the clipping axis. A policy is any type that names
// its axis and has the members of that axis' contract (docs/policies.md); nothing is inherited or registered.
// Expected: "steps of 0.01, 0.01, 0.00707, 0.00577": every weight moves by the learning rate, which decays from step 2
// on.
#include <torch/torch.h>

#include <cmath>
#include <iostream>
#include <sstream>

#include "saturate/saturate.hpp"

namespace st = saturate;

// begin policy
/// Constant for `warmup` steps, then 1 / sqrt(step): the schedule axis.
struct InverseSqrt {
  using axis = st::axis::schedule;
  int64_t warmup = 1;

  double factor(int64_t step) const {
    return step < warmup ? 1.0 : std::sqrt(static_cast<double>(warmup) / static_cast<double>(step));
  }
  void validate() const {  // called by the Trainer before it changes anything
    if (warmup < 1) throw st::ConfigError("InverseSqrt: warmup is " + std::to_string(warmup) + "; give 1 or more");
  }
};
static_assert(st::SchedulePolicy<InverseSqrt>);

/// Every gradient becomes its sign (signSGD; Bernstein et al., 2018): the clipping axis.
struct SignOfGradient {
  using axis = st::axis::clipping;

  st::ClipResult clip(std::vector<torch::Tensor>& gradients) const {
    for (torch::Tensor& gradient : gradients) gradient.sign_();  // on the device; nothing is read on the host
    return {};                                                   // no norm was measured, and no step is refused
  }
};
static_assert(st::ClippingPolicy<SignOfGradient>);
// end policy

int main() {
  torch::manual_seed(0);
  torch::nn::Linear net(4, 1);
  const std::pair batch(torch::randn({32, 4}), torch::randn({32, 1}));
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.01}), st::MSE{}, SignOfGradient{},
                      InverseSqrt{.warmup = 1}, st::TrainerOptions{.device = torch::kCPU});
  std::ostringstream moves;
  moves.precision(3);
  for (int step = 0; step < 4; ++step) {
    const torch::Tensor before = net->weight.detach().clone();
    trainer.step(batch);
    const torch::Tensor moved = (net->weight.detach() - before).abs();
    moves << (step ? ", " : "") << moved.mean().item<float>();
    if ((moved.max() - moved.min()).item<double>() > 1e-6) return 1;  // all weights move alike
  }
  std::cout << "steps of " << moves.str() << "\n";

  try {
    st::Trainer wrong(net, st::optim::SGD(net->parameters(), {.lr = 0.01}), st::MSE{}, InverseSqrt{.warmup = 0});
  } catch (const st::ConfigError& error) {
    std::cout << "refused: " << error.what() << "\n";
    return moves.str() == "0.01, 0.01, 0.00707, 0.00577" ? 0 : 1;
  }
  return 1;
}
