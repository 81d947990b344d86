// SPDX-License-Identifier: Apache-2.0
// What becomes of the gradients after a step: undefined (autograd hands the next backward's over), or zeroed in place
// (autograd adds to them). A CNN and a transformer; bench.py runs it with and without kept pages.
#include <torch/types.h>
#include <torch/utils.h>
#include <torch/version.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models.hpp"
#include "rounds.hpp"
#include "saturate/loss.hpp"
#include "saturate/optim/adamw.hpp"

namespace {

namespace st = saturate;

struct Side {
  std::string name;
  std::function<void()> step;
  int64_t samples;
};

template <class Net>
Side make_side(const std::string& name, const at::Tensor& inputs, const at::Tensor& targets, bool set_to_none) {
  torch::manual_seed(0);
  Net net;
  auto optimizer = std::make_shared<st::optim::AdamW>(net->parameters());
  const at::Tensor root = torch::scalar_tensor(1.0 / static_cast<double>(targets.numel()));
  const auto step = [=]() mutable {
    torch::autograd::backward({st::CrossEntropy{}(net->forward(inputs), targets)}, {root});
    optimizer->step();
    optimizer->zero_grad(set_to_none);
  };
  return {name + (set_to_none ? "_none" : "_zero"), step, inputs.size(0)};
}

}  // namespace

int main() {
  const at::Tensor pictures = torch::randn({64, 1, 28, 28}), classes = torch::randint(10, {64}, at::kLong);
  const at::Tensor text = torch::randint(256, {2, 64}, at::kLong), next = torch::randint(256, {2, 64}, at::kLong);
  std::vector<Side> sides;
  for (const bool set_to_none : {true, false}) {
    sides.push_back(make_side<bench::Cnn>("cnn", pictures, classes, set_to_none));
    sides.push_back(make_side<bench::Gpt>("gpt", text, next, set_to_none));
  }
  const std::string setting =
      "fused AdamW, " + std::to_string(at::get_num_threads()) + " threads, LibTorch " TORCH_VERSION;
  for (const Side& side : sides) {
    bench::print_info(side.name, std::to_string(side.samples) + " samples a step, " + setting);
    for (int i = 0; i < 5; ++i) side.step();
  }
  bench::serve_rounds([&](int64_t n) {
    for (std::size_t i = 0; i < sides.size(); ++i) {
      const Side& side = sides[(i + static_cast<std::size_t>(n)) % sides.size()];
      const int64_t steps = 10;
      const double seconds = bench::seconds_of([&] {
        for (int64_t s = 0; s < steps; ++s) side.step();
      });
      bench::print_sample(side.name, seconds, steps * side.samples);
    }
  });
  return 0;
}
