// SPDX-License-Identifier: Apache-2.0
// Callbacks of your own: any object with one or more of the events of trainer/events.hpp. One stops the run at a loss,
// one keeps the gradient norms without making the training wait for them.
// Expected: the run stops by itself, the last logged loss is below 0.1, and there is a norm for every step.
#include <torch/torch.h>

#include <iostream>
#include <vector>

#include "saturate/saturate.hpp"

namespace st = saturate;

// begin callback
/// Ends fit once the logged loss is below `target`.
struct StopAtLoss {
  double target = 0;

  void on_log(const st::LogEvent& event) {  // values are on the host here
    std::cout << "step " << event.state.step << "  loss " << event.loss << "\n";
    if (event.loss < target) event.state.stop = true;
  }
};

/// Keeps every step's gradient norm.
struct NormHistory {
  std::vector<torch::Tensor> norms;

  // Tensors of the device: kept, not read, so that the step stays free of host reads.
  void on_step(const st::StepEvent& event) { norms.push_back(event.grad_norm); }
  void on_fit_end(const st::FitEnd& event) {  // also when an exception leaves fit
    if (norms.empty()) return;
    const torch::Tensor all = torch::stack(norms);
    std::cout << (event.failed ? "failed" : "finished") << " after " << event.state.step << " steps, gradient norm "
              << all.min().item<double>() << " to " << all.max().item<double>() << "\n";
  }
};
// end callback

int main() {
  torch::manual_seed(0);
  torch::nn::Linear net(8, 1);
  const torch::Tensor x = torch::randn({256, 8}), y = x.matmul(torch::randn({8, 1}));
  st::data::PrefetchLoader loader(st::data::TensorSource(x, y), {.batch_size = 32, .shuffle = true});

  NormHistory history;  // std::ref: the Trainer works with this object, and we can look at it afterwards
  st::Trainer trainer(net, st::optim::AdamW(net->parameters(), {.lr = 0.05}), st::MSE{}, st::ClipGradNorm{10.0},
                      StopAtLoss{.target = 0.1}, std::ref(history));
  const st::FitResult result = trainer.fit(loader, {.epochs = 100, .log_every = 8});
  return result.stopped && result.loss < 0.1 && static_cast<int64_t>(history.norms.size()) == result.windows ? 0 : 1;
}
