// SPDX-License-Identifier: Apache-2.0
// Options per group, decay by name, and a model in BF16 with FP32 master weights. Expected: groups decay as told, and
// 100 steps of -0.001 take a BF16 weight from 1 to 0.9 with master weights, nowhere without.
#include <torch/torch.h>

#include <cmath>
#include <cstdlib>
#include <iostream>
#include <utility>
#include <vector>

#include "saturate/optim/adamw.hpp"
#include "saturate/optim/decay_groups.hpp"
#include "saturate/optim/master_weights.hpp"
#include "saturate/optim/sgd.hpp"

namespace st = saturate;

namespace {

void expect(bool condition, const char* what) {
  if (condition) return;
  std::cerr << "not as expected: " << what << "\n";
  std::exit(1);
}

struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})))),
        linear(register_module("linear", torch::nn::Linear(8, 8))) {}
  torch::Tensor forward(const torch::Tensor& x) { return linear(norm(x)); }
  torch::nn::LayerNorm norm;
  torch::nn::Linear linear;
};
TORCH_MODULE(Block);

// begin groups
st::optim::AdamW body_and_head(Block& body, torch::nn::Linear& head) {
  return st::optim::AdamW(
      {{.params = body->parameters()}, {.params = head->parameters(), .lr = 1e-2, .more = {{"beta2", 0.95}}}},
      {.lr = 1e-3, .weight_decay = 0.1});
}
// end groups

// begin decay
st::optim::AdamW decaying_matrices(Block& net) {  // of two and more dimensions
  return st::optim::AdamW(st::optim::decay_groups(*net, 0.1), {.lr = 1e-3});
}

st::optim::AdamW decaying_by_name(Block& net) {  // ".*" takes all of a name
  return st::optim::AdamW(st::optim::decay_groups(*net, 0.1, {".*bias", "norm\\..*"}), {.lr = 1e-3});
}
// end decay

// begin masters
auto with_masters(torch::nn::Module& net) {
  return st::optim::MasterWeights(net.parameters(),
                                  [](auto params) { return st::optim::SGD(std::move(params), {.lr = 1e-3}); });
}
// end masters

// The one weight of a BF16 model after 100 steps with a gradient of 1.
template <class Make>
double after_100_steps(Make&& make) {
  torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
  net->to(torch::kBFloat16);
  torch::nn::init::ones_(net->weight);
  auto optimizer = make(*net);
  for (int step = 0; step < 100; ++step) {
    net(torch::ones({1, 1}, torch::kBFloat16)).sum().backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  return net->weight.item<double>();
}

}  // namespace

int main() {
  Block net;
  torch::nn::Linear head(8, 2);
  const auto grouped = body_and_head(net, head);
  const auto groups = grouped.state().groups;
  expect(grouped.lr(0) == 1e-3 && grouped.lr(1) == 1e-2, "each group has its learning rate");
  expect(groups[0].at("beta2") == 0.999 && groups[1].at("beta2") == 0.95, "beta2 is the second group's own");
  expect(groups[1].at("weight_decay") == 0.1, "weight decay is inherited");
  for (const auto& optimizer : {decaying_matrices(net).groups(), decaying_by_name(net).groups()}) {
    expect(optimizer == std::vector<std::size_t>{0, 1, 1, 1}, "linear.weight decays, the other three do not");
  }

  const double with = after_100_steps([](torch::nn::Module& model) { return with_masters(model); });
  const double without =
      after_100_steps([](torch::nn::Module& model) { return st::optim::SGD(model.parameters(), {.lr = 1e-3}); });
  std::cout << "a BF16 weight of 1 after 100 steps of -0.001: " << with << " with master weights, " << without
            << " without\n";
  expect(std::abs(with - 0.9) < 0.004, "0.9 with master weights");
  expect(without == 1.0, "1 without");
  return 0;
}
