// SPDX-License-Identifier: Apache-2.0
// A model whose weights and buffers follow closed forms, the same as in tests/oracle/make_averages.py.
#pragma once

#include <torch/torch.h>

#include <cmath>
#include <cstdint>

namespace averaging {

struct ModelImpl : torch::nn::Module {
  explicit ModelImpl(at::ScalarType dtype = at::kDouble)
      : weight(register_parameter("weight", torch::zeros({2, 3}, dtype))),
        bias(register_parameter("bias", torch::zeros({2}, dtype))),
        mean(register_buffer("mean", torch::zeros({2}, dtype))),
        count(register_buffer("count", torch::zeros({}, at::kLong))) {
    move(-1);
  }

  void move(int64_t step) {
    const torch::NoGradGuard no_grad;
    int64_t index = 0;
    for (at::Tensor& tensor : std::vector<at::Tensor>{weight, bias, mean}) {
      at::Tensor values = torch::empty({tensor.numel()}, at::kDouble);
      for (int64_t i = 0; i < tensor.numel(); ++i) {
        values[i] = std::sin(static_cast<double>((i + 1) * (step + 1) + index)) + 0.1 * static_cast<double>(step);
      }
      tensor.copy_(values.view_as(tensor));
      ++index;
    }
    count.fill_(step);
  }

  /// Every parameter and buffer.
  std::vector<at::Tensor> tensors() const { return {weight, bias, mean, count}; }

  at::Tensor weight, bias, mean, count;
};
TORCH_MODULE(Model);

}  // namespace averaging
