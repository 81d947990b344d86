// SPDX-License-Identifier: Apache-2.0
#include "saturate/optim/torch_optimizer.hpp"

#include "saturate/error.hpp"
#include "saturate/log.hpp"

#include <c10/util/StringUtil.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <unordered_set>

namespace saturate::optim {

namespace {

// Tensors as large as the parameter that a step keeps for each.
int64_t kept_tensors(const torch::optim::OptimizerOptions& options) {
  using namespace torch::optim;
  if (const auto* adam = dynamic_cast<const AdamOptions*>(&options)) return 2 + adam->amsgrad();
  if (const auto* adamw = dynamic_cast<const AdamWOptions*>(&options)) return 2 + adamw->amsgrad();
  if (const auto* sgd = dynamic_cast<const SGDOptions*>(&options)) return sgd->momentum() != 0;
  if (const auto* rms = dynamic_cast<const RMSpropOptions*>(&options))
    return 1 + (rms->momentum() != 0) + rms->centered();
  return dynamic_cast<const AdagradOptions*>(&options) != nullptr;
}

}  // namespace

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

StateBytes TorchOptimizer::state_bytes() const {
  StateBytes bytes;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& group : optimizer_->param_groups()) {
    const int64_t tensors = kept_tensors(group.options());
    for (const at::Tensor& param : group.params()) {
      if (!seen.insert(param.unsafeGetTensorImpl()).second) continue;
      const bool there = optimizer_->state().count(param.unsafeGetTensorImpl()) > 0;
      if (there || param.requires_grad()) {
        (there ? bytes.now : bytes.to_come) += tensors * static_cast<int64_t>(param.nbytes());
      }
    }
  }
  return bytes;
}

void TorchOptimizer::load_state(const OptimizerState&) {
  throw StateError("a torch::optim optimizer keeps no state by name; load it with torch::load, or use saturate::optim");
}

}  // namespace saturate::optim
