// SPDX-License-Identifier: Apache-2.0
#include "saturate/optim/optimizer.hpp"

namespace saturate::optim {

std::vector<at::Tensor> Optimizer::gradients() const {
  std::vector<at::Tensor> result;
  for (const at::Tensor& parameter : parameters()) result.push_back(parameter.grad());
  return result;
}

std::vector<std::size_t> Optimizer::groups() const { return std::vector<std::size_t>(parameters().size(), 0); }

StateBytes Optimizer::state_bytes() const {
  StateBytes bytes;
  for (const auto& [name, entry] : state().parameters) {
    for (const auto& [key, tensor] : entry) bytes.now += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

}  // namespace saturate::optim
