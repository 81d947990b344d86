// SPDX-License-Identifier: Apache-2.0
// The tensors that an optimizer keeps from step to step.
#include "saturate/distributed/sharded_optimizer.hpp"
#include "saturate/observe/memory_report.hpp"
#include "saturate/optim/torch_optimizer.hpp"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace saturate::detail {
namespace {

using torch::optim::OptimizerParamState;

std::optional<std::vector<at::Tensor>> tensors_of(const OptimizerParamState& state) {
  if (const auto* adamw = dynamic_cast<const torch::optim::AdamWParamState*>(&state)) {
    return {{adamw->exp_avg(), adamw->exp_avg_sq(), adamw->max_exp_avg_sq()}};
  }
  if (const auto* adam = dynamic_cast<const torch::optim::AdamParamState*>(&state)) {
    return {{adam->exp_avg(), adam->exp_avg_sq(), adam->max_exp_avg_sq()}};
  }
  if (const auto* sgd = dynamic_cast<const torch::optim::SGDParamState*>(&state)) return {{sgd->momentum_buffer()}};
  if (const auto* rmsprop = dynamic_cast<const torch::optim::RMSpropParamState*>(&state)) {
    return {{rmsprop->square_avg(), rmsprop->momentum_buffer(), rmsprop->grad_avg()}};
  }
  if (const auto* adagrad = dynamic_cast<const torch::optim::AdagradParamState*>(&state)) return {{adagrad->sum()}};
  return std::nullopt;
}

}  // namespace

StateTensors state_tensors(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> all;
  for (const auto& [parameter, state] : optimizer.state()) {
    const auto tensors = tensors_of(*state);
    if (!tensors) return std::nullopt;
    all.insert(all.end(), tensors->begin(), tensors->end());
  }
  return all;
}

StateTensors state_tensors(const optim::Optimizer& optimizer) {
  if (const auto* wrapped = dynamic_cast<const optim::TorchOptimizer*>(&optimizer)) {
    return state_tensors(wrapped->torch_optimizer());
  }
  // Of a sharded optimizer this rank's part, which takes no memory to see and no other rank to answer.
  const auto* sharded = dynamic_cast<const distributed::ShardedOptimizer*>(&optimizer);
  const optim::OptimizerState state = sharded != nullptr ? sharded->local_state() : optimizer.state();
  std::vector<at::Tensor> all;
  for (const auto& [parameter, tensors] : state.parameters) {
    for (const auto& [name, tensor] : tensors) {
      if (tensor.defined() && tensor.dim() > 0) all.push_back(tensor);  // step numbers are copies
    }
  }
  return all;
}

}  // namespace saturate::detail
