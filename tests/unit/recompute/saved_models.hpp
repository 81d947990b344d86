// SPDX-License-Identifier: Apache-2.0
// Small models whose saved tensors are of every kind, and what a training run of one gives. For the tests of Offload
// and CompressSaved.
#pragma once

#include "saturate/marks.hpp"
#include "saturate/precision/autocast_scope.hpp"
#include "support.hpp"

#include <optional>
#include <string>
#include <vector>

namespace saved_models {

namespace st = saturate;

struct LinearBlockImpl : torch::nn::Module {
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(32, 32));
  at::Tensor forward(const at::Tensor& x) { return torch::gelu(linear(x)); }
};
TORCH_MODULE(LinearBlock);

struct ConvNormImpl : torch::nn::Module {
  torch::nn::Conv2d conv =
      register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 4, 3).padding(1).bias(false)));
  torch::nn::BatchNorm2d norm = register_module("norm", torch::nn::BatchNorm2d(4));
  at::Tensor forward(const at::Tensor& x) { return x + norm(conv(x)).relu_(); }
};
TORCH_MODULE(ConvNorm);

struct AttentionImpl : torch::nn::Module {
  explicit AttentionImpl(int64_t width = 32, double rate = 0.2)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        qkv(register_module("qkv", torch::nn::Linear(width, 3 * width))),
        up(register_module("up", torch::nn::Linear(width, 4 * width))),
        down(register_module("down", torch::nn::Linear(4 * width, width))),
        rate(rate) {}
  at::Tensor forward(const at::Tensor& x) {
    const auto parts = qkv(norm(x)).chunk(3, -1);  // three views of one storage
    const at::Tensor scores = torch::matmul(parts[0], parts[1].transpose(-1, -2)) / 6;
    const at::Tensor weights = torch::dropout(torch::softmax(scores, -1), rate, is_training());
    const at::Tensor y = x + torch::matmul(weights, parts[2]);
    return y + torch::dropout(down(torch::gelu(up(y))), rate, is_training());
  }
  torch::nn::LayerNorm norm;
  torch::nn::Linear qkv, up, down;
  double rate;
};
TORCH_MODULE(Attention);

/// `depth` marked blocks; with `tied` all are the same module.
template <class Block>
struct StackImpl : torch::nn::Module {
  template <class... Args>
  explicit StackImpl(int64_t depth, bool tied, Args... args) {
    for (int64_t i = 0; i < depth; ++i) {
      if (i == 0 || !tied) register_module("block" + std::to_string(i), blocks.emplace_back(Block(args...)));
    }
    while (static_cast<int64_t>(blocks.size()) < depth) blocks.push_back(blocks.front());
  }
  at::Tensor forward(at::Tensor x) {
    for (Block& block : blocks) x = st::call(block, x);
    return x;
  }
  std::vector<Block> blocks;
};

template <class Block, class... Args>
std::shared_ptr<StackImpl<Block>> stack(int64_t depth, bool tied = false, Args... args) {
  torch::manual_seed(3);
  return std::make_shared<StackImpl<Block>>(depth, tied, args...);
}

inline at::Tensor rows() { return torch::linspace(-1, 1, 16 * 32).reshape({16, 32}); }
inline at::Tensor tokens(int64_t batch = 2, int64_t length = 9, int64_t width = 32) {
  return torch::linspace(-1, 1, batch * length * width).mul(20).sin().reshape({batch, length, width});
}
inline at::Tensor images() { return torch::linspace(-3, 3, 2 * 4 * 8 * 8).reshape({2, 4, 8, 8}).cos(); }

inline at::Tensor random_state() { return at::globalContext().defaultGenerator(c10::Device(c10::kCPU)).get_state(); }

struct Conditions {
  std::optional<at::ScalarType> autocast;
  at::MemoryFormat format = at::MemoryFormat::Contiguous;
  c10::Device device = c10::kCPU;
};

/// Losses, gradients, buffers and the random stream of two windows of two micro-batches; `scope()` spans each forward.
template <class Net, class Scope>
std::vector<at::Tensor> train(Net net, const at::Tensor& batch, const Conditions& conditions, Scope&& scope) {
  std::vector<at::Tensor> outcome;
  net->to(conditions.device);
  torch::optim::SGD optimizer(net->parameters(), 0.002);
  torch::manual_seed(11);
  for (int micro = 0; micro < 4; ++micro) {
    const at::Tensor x = (batch + micro).to(conditions.device).to(conditions.format).detach().requires_grad_();
    at::Tensor loss;
    {
      const auto spans = scope(*net);
      std::optional<st::AutocastScope> autocast;
      if (conditions.autocast) autocast.emplace(conditions.device.type(), *conditions.autocast);
      loss = net->forward(x).to(at::kFloat).pow(2).sum();
    }
    outcome.push_back(loss.detach());
    loss.backward();
    outcome.push_back(x.grad());
    outcome.push_back(random_state());
    if (micro % 2 == 0) continue;  // accumulation
    for (const at::Tensor& parameter : net->parameters()) outcome.push_back(parameter.grad().clone());
    for (const at::Tensor& buffer : net->buffers()) outcome.push_back(buffer.clone());
    optimizer.step();
    optimizer.zero_grad();
  }
  return outcome;
}

struct Nothing {
  ~Nothing() {}
};
inline Nothing plainly(const torch::nn::Module&) { return {}; }

/// |a - b| / |b| over all elements of all tensors.
inline double relative_l2(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]).to(at::kDouble).pow(2).sum().item<double>();
    norm += b[i].to(at::kDouble).pow(2).sum().item<double>();
  }
  return std::sqrt(difference / norm);
}

}  // namespace saved_models
