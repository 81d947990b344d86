// SPDX-License-Identifier: Apache-2.0
#include "saturate/optim/wide_optimizer.hpp"

#include "saturate/error.hpp"
#include "saturate/log.hpp"

#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <unordered_map>

namespace saturate::optim {
namespace {

bool is_half(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}

bool surely_refused(const StepArgs& args) {
  return args.found_inf.defined() && args.found_inf.is_cpu() && *args.found_inf.const_data_ptr<float>() != 0;
}

}  // namespace

std::vector<at::Tensor> WideOptimizer::widen(const std::vector<at::Tensor>& params) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& param : params) {
    const auto known =
        std::find_if(pairs_.begin(), pairs_.end(), [&](const Pair& p) { return p.param.is_same(param); });
    if (known != pairs_.end()) {  // tied
      result.push_back(known->wide);
      continue;
    }
    if (!param.defined()) throw ConfigError(type_ + ": a parameter is undefined; construct the module before this");
    if (!param.is_leaf()) throw ConfigError(type_ + ": a parameter is not a leaf; move the module to its device first");
    at::Tensor wide = param;
    if (is_half(param)) wide = param.detach().to(at::kFloat).requires_grad_(param.requires_grad());
    pairs_.push_back({param, wide, {}});
    result.push_back(wide);
  }
  return result;
}

void WideOptimizer::attach(std::shared_ptr<Optimizer> inner) {
  if (inner == nullptr) throw ConfigError(type_ + ": the function that makes the inner optimizer returned none");
  inner_ = std::move(inner);
  std::unordered_map<const c10::TensorImpl*, Pair> by_wide;
  for (const Pair& pair : pairs_) by_wide.emplace(pair.wide.unsafeGetTensorImpl(), pair);
  std::vector<Pair> ordered;
  const std::vector<at::Tensor> stepped = inner_->parameters();
  for (const at::Tensor& wide : stepped) {
    const auto found = by_wide.find(wide.unsafeGetTensorImpl());
    if (found == by_wide.end()) break;
    found->second.name = "parameter." + std::to_string(ordered.size());
    ordered.push_back(found->second);
  }
  if (ordered.size() != pairs_.size() || stepped.size() != pairs_.size()) {
    throw ConfigError(type_ + ": the inner optimizer must be made over exactly the parameters that its maker is given");
  }
  pairs_ = std::move(ordered);
  if (std::none_of(pairs_.begin(), pairs_.end(), [](const Pair& pair) { return pair.widened(); })) {
    log::warn(type_ + " has no effect: no parameter is of half precision; use the inner optimizer alone");
  }
}

std::vector<at::Tensor> WideOptimizer::parameters() const {
  std::vector<at::Tensor> result;
  for (const Pair& pair : pairs_) result.push_back(pair.param);
  return result;
}

void WideOptimizer::gather_gradients() {
  const c10::AutoGradMode no_grad(false);
  for (Pair& pair : pairs_) {
    if (pair.widened() && pair.param.grad().defined() && pair.param.grad().layout() != at::kStrided) {
      throw ConfigError(type_ + ": the gradient of '" + pair.name + "' is sparse; make the embedding dense");
    }
  }
  for (Pair& pair : pairs_) {
    if (!pair.widened()) continue;
    at::Tensor& grad = pair.param.mutable_grad();
    if (!grad.defined()) continue;
    at::Tensor& sum = pair.wide.mutable_grad();
    if (sum.defined()) {
      sum.add_(grad);
    } else {
      sum = grad.detach().to(at::kFloat);
    }
    grad.reset();
  }
}

std::vector<at::Tensor> WideOptimizer::gradients() const {
  // Moves what is left where it belongs; which parameters there are does not change.
  const_cast<WideOptimizer*>(this)->gather_gradients();
  std::vector<at::Tensor> result;
  for (const Pair& pair : pairs_) result.push_back(pair.wide.grad());
  return result;
}

void WideOptimizer::step(const StepArgs& args) {
  gather_gradients();
  if (surely_refused(args)) return;
  const c10::AutoGradMode no_grad(false);
  try {
    prepare();
    inner_->step(args);
    write_back();
  } catch (...) {
    restore();
    throw;
  }
  restore();
}

void WideOptimizer::zero_grad(bool set_to_none) {
  inner_->zero_grad(set_to_none);
  for (Pair& pair : pairs_) {
    if (pair.widened()) pair.param.mutable_grad().reset();  // zeros are kept in float32 only
  }
}

void WideOptimizer::name_parameters(const NamedTensors& named) {
  std::unordered_map<const c10::TensorImpl*, Pair*> pairs;
  for (Pair& pair : pairs_) pairs.emplace(pair.param.unsafeGetTensorImpl(), &pair);
  NamedTensors wide;
  for (const auto& [name, tensor] : named) {
    const auto found = pairs.find(tensor.unsafeGetTensorImpl());
    if (found == pairs.end()) continue;
    found->second->name = name;
    wide.emplace_back(name, found->second->wide);
    pairs.erase(found);  // of a tied parameter's names, the first
  }
  inner_->name_parameters(wide);
}

StateBytes WideOptimizer::state_bytes() const {
  StateBytes bytes = inner_->state_bytes();
  for (const Pair& pair : pairs_) {
    if (pair.widened()) bytes.now += static_cast<int64_t>(pair.wide.storage().nbytes());
  }
  return bytes;
}

void WideOptimizer::refuse_state(const std::string& what) const {
  throw StateError(type_ + ": " + what + "; nothing was loaded");
}

}  // namespace saturate::optim
