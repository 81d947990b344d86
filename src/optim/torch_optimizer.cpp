// SPDX-License-Identifier: Apache-2.0
#include "saturate/optim/torch_optimizer.hpp"

#include "saturate/error.hpp"
#include "saturate/log.hpp"

#include <c10/util/StringUtil.h>
#include <torch/optim/optimizer.h>

#include <unordered_set>

namespace saturate::optim {

TorchOptimizer::TorchOptimizer(std::shared_ptr<torch::optim::Optimizer> optimizer) : optimizer_(std::move(optimizer)) {
  if (optimizer_ == nullptr) throw ConfigError("Trainer: the optimizer is a null pointer");
  for (const auto& group : optimizer_->param_groups()) base_lrs_.push_back(group.options().get_lr());
}

TorchOptimizer::~TorchOptimizer() = default;

void TorchOptimizer::step(const StepArgs& args) {
  double factor = args.lr_factor;
  if (args.lr_factor_tensor.defined()) factor = args.lr_factor_tensor.item<double>();
  if (args.found_inf.defined()) {
    log::warn_once(
        "torch_optimizer.found_inf",
        "a torch::optim optimizer cannot skip a step on the device: every step reads a flag on the host; the "
        "optimizers of saturate::optim do not");
    const at::Tensor flag = args.found_inf.cpu();
    if (*flag.const_data_ptr<float>() != 0) return;
  }
  auto& groups = optimizer_->param_groups();
  const auto& factors = args.group_lr_factors;
  if (!factors.empty() && factors.size() != groups.size()) {
    throw ConfigError(
        c10::str(factors.size(), " learning-rate factors for ", groups.size(), " groups; give one a group"));
  }
  for (std::size_t i = 0; i < groups.size(); ++i)
    groups[i].options().set_lr(base_lrs_[i] * (factors.empty() ? factor : factors[i]));
  optimizer_->step();
}

void TorchOptimizer::zero_grad(bool set_to_none) { optimizer_->zero_grad(set_to_none); }

std::vector<at::Tensor> TorchOptimizer::parameters() const {
  std::vector<at::Tensor> result;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& group : optimizer_->param_groups()) {
    for (const at::Tensor& param : group.params()) {
      if (seen.insert(param.unsafeGetTensorImpl()).second) result.push_back(param);
    }
  }
  return result;
}

std::vector<std::size_t> TorchOptimizer::groups() const {
  std::vector<std::size_t> result;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (std::size_t i = 0; i < optimizer_->param_groups().size(); ++i) {
    for (const at::Tensor& param : optimizer_->param_groups()[i].params()) {
      if (seen.insert(param.unsafeGetTensorImpl()).second) result.push_back(i);
    }
  }
  return result;
}

double TorchOptimizer::lr(std::size_t group) const {
  if (group >= base_lrs_.size()) throw ConfigError(c10::str("there is no group ", group, ", only ", base_lrs_.size()));
  return base_lrs_[group];
}

void TorchOptimizer::set_lr(double value, std::size_t group) {
  lr(group);  // checks the index
  base_lrs_[group] = value;
}

OptimizerState TorchOptimizer::state() const {
  throw StateError("a torch::optim optimizer keeps no state by name; save it with torch::save, or use saturate::optim");
}

void TorchOptimizer::load_state(const OptimizerState&) {
  throw StateError("a torch::optim optimizer keeps no state by name; load it with torch::load, or use saturate::optim");
}

}  // namespace saturate::optim
