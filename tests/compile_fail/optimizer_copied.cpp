// SPDX-License-Identifier: Apache-2.0
// expect: saturate: optimizers do not copy; give the Trainer std::move(optimizer) or std::ref(optimizer)
#include "saturate/optim/sgd.hpp"
#include "saturate/optim/torch_optimizer.hpp"

std::shared_ptr<saturate::optim::Optimizer> give(saturate::optim::SGD& optimizer) {
  return saturate::optim::detail::own(optimizer);
}
