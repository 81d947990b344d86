// SPDX-License-Identifier: Apache-2.0
// expect: saturate: LBFGS evaluates the model several times a step through a closure
#include "saturate/optim/torch_optimizer.hpp"

#include <torch/optim/lbfgs.h>

std::shared_ptr<saturate::optim::Optimizer> give(std::unique_ptr<torch::optim::LBFGS> optimizer) {
  return saturate::optim::detail::own(std::move(optimizer));
}
