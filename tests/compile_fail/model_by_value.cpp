// SPDX-License-Identifier: Apache-2.0
// expect: saturate: the first argument of Trainer is a module holder (TORCH_MODULE) or a std::shared_ptr to a module
#include "saturate/optim/sgd.hpp"
#include "saturate/trainer.hpp"

#include <torch/nn/module.h>

struct Net : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x; }
};

void train(Net net) { saturate::Trainer trainer(net, saturate::optim::SGD(net.parameters()), saturate::MSE{}); }
