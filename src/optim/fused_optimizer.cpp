// SPDX-License-Identifier: Apache-2.0
#include "saturate/optim/fused_optimizer.hpp"

#include "saturate/error.hpp"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <unordered_map>

namespace saturate::optim {
namespace {

void check_option(const std::string& type, const char* name, double value) {
  if (!std::isfinite(value) || value < 0) {
    throw ConfigError(c10::str(type, ": ", name, " is ", value, "; give a finite value of 0 or more"));
  }
}

void check_parameter(const std::string& type, std::size_t index, const at::Tensor& param) {
  const auto complain = [&](const std::string& what) {
    throw ConfigError(c10::str(type, ": parameter ", index, " ", what));
  };
  if (!param.defined()) complain("is undefined; construct the module before its optimizer");
  if (!at::isFloatingType(param.scalar_type())) {
    complain(c10::str("has dtype ", param.scalar_type(), "; only real floating-point parameters can be trained here"));
  }
  if (!param.is_cpu() && !param.is_cuda()) {
    complain(c10::str("is on ", param.device(), ", which has no fused kernels; use a torch::optim optimizer"));
  }
  if (!param.is_leaf()) complain("is not a leaf; move the module to its device before making the optimizer");
  if (!param.is_non_overlapping_and_dense()) {
    complain("has gaps or overlaps in memory; call .contiguous() on it first");
  }
}

bool same_kind(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.device() == b.device();
}

// The kernels walk raw memory, so everything beside a parameter has to lie in memory as the parameter does. Autograd
// sees to that for gradients, but a parameter can change its memory format afterwards.
void match_layout(at::Tensor& tensor, const at::Tensor& param) {
  if (tensor.strides() == param.strides()) return;
  tensor = at::empty_like(param).copy_(tensor);
}

}  // namespace

FusedOptimizer::FusedOptimizer(std::string type, std::vector<std::string> state_names, std::vector<ParamGroup> groups,
                               Group defaults)
    : type_(std::move(type)), state_names_(std::move(state_names)) {
  std::unordered_map<const c10::TensorImpl*, std::size_t> seen;
  for (const ParamGroup& group : groups) {
    const std::size_t index = groups_.size();
    groups_.push_back({group.lr.value_or(defaults.lr), group.weight_decay.value_or(defaults.weight_decay)});
    check_option(type_, "lr", groups_.back().lr);
    check_option(type_, "weight_decay", groups_.back().weight_decay);
    for (const at::Tensor& param : group.params) {
      check_parameter(type_, params_.size(), param);
      const auto [place, fresh] = seen.emplace(param.unsafeGetTensorImpl(), index);
      if (!fresh && place->second != index) {
        throw ConfigError(c10::str(type_, ": a parameter is in group ", place->second, " and in group ", index,
                                   "; put each into one group"));
      }
      if (!fresh) continue;  // tied: once
      names_.push_back("parameter." + std::to_string(params_.size()));
      params_.push_back(param);
      group_of_.push_back(index);
    }
  }
  if (params_.empty()) {
    throw ConfigError(type_ + ": no parameters were given; a module that registers none cannot be trained");
  }
  for (std::size_t i = 0; i < params_.size(); ++i) {
    const auto fits = [&](const Cohort& c) { return c.group == group_of_[i] && same_kind(c.params[0], params_[i]); };
    auto cohort = std::find_if(cohorts_.begin(), cohorts_.end(), fits);
    if (cohort == cohorts_.end()) {
      cohort = cohorts_.emplace(cohorts_.end());
      cohort->group = group_of_[i];
    }
    cohort->members.push_back(i);
    cohort->params.push_back(params_[i]);
  }
}

void FusedOptimizer::check_gradients() const {
  for (std::size_t i = 0; i < params_.size(); ++i) {
    const at::Tensor& grad = params_[i].grad();
    if (!grad.defined()) continue;
    const auto complain = [&](const std::string& what) {
      throw ConfigError(c10::str(type_, ": the gradient of '", names_[i], "' ", what));
    };
    if (grad.layout() != at::kStrided) {
      complain("is sparse; make the embedding dense (sparse=false), or use torch::optim::SGD");
    }
    if (!same_kind(grad, params_[i])) {
      complain(c10::str("is ", grad.scalar_type(), " on ", grad.device(), ", the parameter ", params_[i].scalar_type(),
                        " on ", params_[i].device(), "; move the module before making the optimizer"));
    }
  }
}

Cohort FusedOptimizer::take(const Cohort& from, const std::vector<std::size_t>& positions) const {
  Cohort part;
  part.group = from.group;
  part.state.resize(from.state.size());
  for (const std::size_t i : positions) {
    part.members.push_back(from.members[i]);
    part.params.push_back(from.params[i]);
    for (std::size_t s = 0; s < from.state.size(); ++s) part.state[s].push_back(from.state[s][i]);
  }
  if (from.step.defined()) {
    part.step = from.step.clone();
    part.steps.assign(part.params.size(), part.step);
  }
  return part;
}

void FusedOptimizer::split_idle_members() {
  const std::size_t count = cohorts_.size();
  for (std::size_t c = 0; c < count; ++c) {
    std::vector<std::size_t> active, idle;
    for (std::size_t i = 0; i < cohorts_[c].params.size(); ++i) {
      (cohorts_[c].params[i].grad().defined() ? active : idle).push_back(i);
    }
    if (active.empty() || idle.empty()) continue;
    Cohort rest = take(cohorts_[c], idle);
    cohorts_[c] = take(cohorts_[c], active);
    cohorts_.push_back(std::move(rest));
  }
}

void FusedOptimizer::start(Cohort& cohort) {
  cohort.step = at::zeros({}, cohort.params[0].options().dtype(at::kFloat).requires_grad(false));
  cohort.steps.assign(cohort.params.size(), cohort.step);
  cohort.state.resize(state_names_.size());
  for (auto& list : cohort.state) {
    for (const at::Tensor& param : cohort.params) list.push_back(at::zeros_like(param));
  }
}

void FusedOptimizer::gather(Cohort& cohort, std::vector<at::Tensor>& grads) {
  grads.clear();
  grads.reserve(cohort.params.size());
  for (std::size_t i = 0; i < cohort.params.size(); ++i) {
    const at::Tensor& param = cohort.params[i];
    grads.push_back(param.grad());
    match_layout(grads.back(), param);
    for (auto& list : cohort.state) match_layout(list[i], param);
  }
}

void FusedOptimizer::step(const StepArgs& args) {
  check_gradients();
  const c10::AutoGradMode no_grad(false);
  split_idle_members();
  std::vector<at::Tensor> grads;
  for (Cohort& cohort : cohorts_) {
    if (!cohort.params[0].grad().defined()) continue;
    if (!cohort.step.defined()) start(cohort);
    gather(cohort, grads);
    const Group& group = groups_[cohort.group];
    KernelArgs kernel{
        .lr = group.lr * args.lr_factor, .lr_tensor = {}, .weight_decay = group.weight_decay, .found_inf = {}};
    if (args.lr_factor_tensor.defined()) kernel.lr_tensor = args.lr_factor_tensor * group.lr;
    if (args.found_inf.defined()) kernel.found_inf = args.found_inf;
    cohort.step.add_(1);
    apply(cohort, grads, kernel);
    if (args.found_inf.defined()) cohort.step.sub_(args.found_inf);
  }
}

void FusedOptimizer::zero_grad(bool set_to_none) {
  for (at::Tensor& param : params_) {
    at::Tensor& grad = param.mutable_grad();
    if (!grad.defined()) continue;
    if (set_to_none) {
      grad.reset();
    } else {
      grad.detach_();
      grad.zero_();
    }
  }
}

double FusedOptimizer::lr(std::size_t group) const {
  if (group >= groups_.size()) {
    throw ConfigError(c10::str(type_, ": there is no group ", group, ", only ", groups_.size()));
  }
  return groups_[group].lr;
}

void FusedOptimizer::set_lr(double value, std::size_t group) {
  lr(group);  // checks the index
  check_option(type_, "lr", value);
  groups_[group].lr = value;
}

void FusedOptimizer::name_parameters(const NamedTensors& named) {
  std::unordered_map<const c10::TensorImpl*, std::string> names;
  for (const auto& [name, tensor] : named) names.emplace(tensor.unsafeGetTensorImpl(), name);
  for (std::size_t i = 0; i < params_.size(); ++i) {
    const auto found = names.find(params_[i].unsafeGetTensorImpl());
    if (found != names.end()) names_[i] = found->second;
  }
}

OptimizerState FusedOptimizer::state() const {
  OptimizerState result;
  result.type = type_;
  for (const std::string& name : names_) result.parameters[name];
  for (const Cohort& cohort : cohorts_) {
    if (!cohort.step.defined()) continue;
    for (std::size_t i = 0; i < cohort.members.size(); ++i) {
      auto& entry = result.parameters[names_[cohort.members[i]]];
      entry["step"] = cohort.step.clone();
      for (std::size_t s = 0; s < state_names_.size(); ++s) entry[state_names_[s]] = cohort.state[s][i];
    }
  }
  for (const Group& group : groups_) {
    result.groups.push_back(options());
    result.groups.back()["lr"] = group.lr;
    result.groups.back()["weight_decay"] = group.weight_decay;
  }
  return result;
}

Cohort FusedOptimizer::restored(std::size_t group, std::vector<std::size_t> members,
                                const OptimizerState& saved) const {
  Cohort cohort;
  cohort.group = group;
  cohort.members = std::move(members);
  for (const std::size_t i : cohort.members) cohort.params.push_back(params_[i]);
  const auto& first = saved.parameters.at(names_[cohort.members[0]]);
  if (first.empty()) return cohort;
  cohort.step = first.at("step").detach().to(cohort.params[0].device(), at::kFloat, false, true);
  cohort.steps.assign(cohort.params.size(), cohort.step);
  for (const std::string& name : state_names_) {
    auto& list = cohort.state.emplace_back();
    for (const std::size_t i : cohort.members) {
      const at::Tensor& source = saved.parameters.at(names_[i]).at(name);
      list.push_back(at::empty_like(params_[i], params_[i].options().dtype(source.scalar_type()).requires_grad(false))
                         .copy_(source));
    }
  }
  return cohort;
}

void FusedOptimizer::load_state(const OptimizerState& saved) {
  const auto complain = [&](const std::string& what) {
    throw StateError(type_ + ": " + what + "; nothing was loaded");
  };
  if (saved.type != type_) complain("the saved state is of " + saved.type);
  if (saved.groups.size() != groups_.size()) {
    complain(c10::str("the saved state has ", saved.groups.size(), " groups, this optimizer ", groups_.size()));
  }
  for (const auto& group : saved.groups) {
    for (const char* option : {"lr", "weight_decay"}) {
      if (!group.contains(option)) complain(c10::str("'", option, "' is missing in a saved group"));
    }
  }
  for (const auto& [name, entry] : saved.parameters) {
    if (std::find(names_.begin(), names_.end(), name) == names_.end()) {
      complain("the saved parameter '" + name + "' does not exist here");
    }
  }
  for (std::size_t i = 0; i < params_.size(); ++i) {
    const auto found = saved.parameters.find(names_[i]);
    if (found == saved.parameters.end()) complain("'" + names_[i] + "' is missing in the saved state");
    if (found->second.empty()) continue;
    if (!found->second.contains("step")) complain("'step' of '" + names_[i] + "' is missing in the saved state");
    for (const std::string& name : state_names_) {
      const auto item = found->second.find(name);
      if (item == found->second.end()) complain("'" + name + "' of '" + names_[i] + "' is missing in the saved state");
      if (item->second.sizes() != params_[i].sizes() || item->second.scalar_type() != params_[i].scalar_type()) {
        complain(c10::str("'", name, "' of '", names_[i], "' is ", item->second.scalar_type(), item->second.sizes(),
                          ", the parameter ", params_[i].scalar_type(), params_[i].sizes()));
      }
    }
  }
  const c10::AutoGradMode no_grad(false);
  // Members of one group, dtype and device with equal step numbers form a cohort again. Step -1: no state yet.
  std::vector<std::pair<double, std::vector<std::size_t>>> keyed;
  for (std::size_t i = 0; i < params_.size(); ++i) {
    const auto& entry = saved.parameters.at(names_[i]);
    const double step = entry.empty() ? -1 : entry.at("step").item<double>();
    const auto fits = [&](const auto& k) {
      const std::size_t first = k.second[0];
      return k.first == step && group_of_[first] == group_of_[i] && same_kind(params_[first], params_[i]);
    };
    const auto place = std::find_if(keyed.begin(), keyed.end(), fits);
    if (place == keyed.end()) {
      keyed.push_back({step, {i}});
    } else {
      place->second.push_back(i);
    }
  }
  std::vector<Cohort> cohorts;
  for (auto& [step, members] : keyed) cohorts.push_back(restored(group_of_[members[0]], members, saved));
  cohorts_ = std::move(cohorts);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    groups_[g] = {saved.groups[g].at("lr"), saved.groups[g].at("weight_decay")};
  }
}

}  // namespace saturate::optim
