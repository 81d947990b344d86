// SPDX-License-Identifier: Apache-2.0
// The models that the programs train. benchmarks/peers has their twins in Python.
#pragma once

#include "saturate/marks.hpp"

#include <torch/nn/functional/activation.h>
#include <torch/nn/functional/pooling.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

namespace bench {

/// [N, 1, 28, 28] to [N, 10].
struct CnnImpl : torch::nn::Module {
  CnnImpl()
      : conv1(register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 32, 3).padding(1)))),
        conv2(register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(32, 64, 3).padding(1)))),
        hidden(register_module("hidden", torch::nn::Linear(3136, 128))),
        head(register_module("head", torch::nn::Linear(128, 10))) {}

  at::Tensor forward(at::Tensor x) {
    x = at::max_pool2d(at::relu(saturate::call(conv1, x)), 2);
    x = at::max_pool2d(at::relu(saturate::call(conv2, x)), 2);
    x = at::relu(saturate::call(hidden, x.flatten(1)));
    return saturate::call(head, x);
  }

  torch::nn::Conv2d conv1, conv2;
  torch::nn::Linear hidden, head;
};
TORCH_MODULE(Cnn);

struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t width, int64_t heads)
      : heads(heads),
        norm1(register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        norm2(register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        qkv(register_module("qkv", torch::nn::Linear(width, 3 * width))),
        out(register_module("out", torch::nn::Linear(width, width))),
        up(register_module("up", torch::nn::Linear(width, 4 * width))),
        down(register_module("down", torch::nn::Linear(4 * width, width))) {}

  at::Tensor forward(const at::Tensor& input) {
    const int64_t n = input.size(0), length = input.size(1), width = input.size(2);
    const auto parts = saturate::call(qkv, saturate::call(norm1, input)).view({n, length, 3, heads, width / heads});
    const auto by_head = [&](int64_t i) { return parts.select(2, i).transpose(1, 2); };
    const at::Tensor mixed = at::scaled_dot_product_attention(by_head(0), by_head(1), by_head(2), {}, 0.0, true);
    const at::Tensor x = input + saturate::call(out, mixed.transpose(1, 2).reshape({n, length, width}));
    return x + saturate::call(down, at::gelu(saturate::call(up, saturate::call(norm2, x))));
  }

  int64_t heads;
  torch::nn::LayerNorm norm1, norm2;
  torch::nn::Linear qkv, out, up, down;
};
TORCH_MODULE(Block);

struct GptShape {
  int64_t width = 128, depth = 4, heads = 4, context = 128;
};

/// Bytes [N, T] (int64) to logits [N, 256, T] of the next byte; T is at most the context. By default 4 blocks of width
/// 128, 4 heads, up to 128 bytes.
struct GptImpl : torch::nn::Module {
  static constexpr int64_t context = GptShape{}.context;

  explicit GptImpl(GptShape shape = {})
      : tokens(register_module("tokens", torch::nn::Embedding(256, shape.width))),
        positions(register_module("positions", torch::nn::Embedding(shape.context, shape.width))),
        blocks(register_module("blocks", torch::nn::ModuleList())),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({shape.width})))),
        head(register_module("head", torch::nn::Linear(shape.width, 256))) {
    for (int64_t i = 0; i < shape.depth; ++i) blocks->push_back(Block(shape.width, shape.heads));
  }

  at::Tensor forward(const at::Tensor& ids) {
    const at::Tensor places = at::arange(ids.size(1), ids.options());
    at::Tensor x = saturate::call(tokens, ids) + saturate::call(positions, places);
    x = saturate::call_each<BlockImpl>(blocks, x);
    return saturate::call(head, saturate::call(norm, x)).transpose(1, 2);
  }

  torch::nn::Embedding tokens, positions;
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm;
  torch::nn::Linear head;
};
TORCH_MODULE(Gpt);

}  // namespace bench
