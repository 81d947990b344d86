// SPDX-License-Identifier: Apache-2.0
#include "saturate/optim/optimizer.hpp"

namespace saturate::optim {

std::vector<at::Tensor> Optimizer::gradients() const {
  std::vector<at::Tensor> result;
  for (const at::Tensor& parameter : parameters()) result.push_back(parameter.grad());
  return result;
}

std::vector<std::size_t> Optimizer::groups() const { return std::vector<std::size_t>(parameters().size(), 0); }

}  // namespace saturate::optim
