// SPDX-License-Identifier: Apache-2.0
#include "saturate/optim/cohort_optimizer.hpp"

#include "saturate/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

namespace saturate::optim {
namespace {

std::string range_complaint(const Method::Option& option, double value) {
  const auto complain = [&](const char* rule) { return c10::str(option.name, " is ", value, "; ", rule); };
  switch (option.range) {
    case Method::Range::not_negative:
      if (!std::isfinite(value) || value < 0) return complain("give a finite value of 0 or more");
      break;
    case Method::Range::below_one:
      if (!(value >= 0 && value < 1)) return complain("it must lie in [0, 1)");
      break;
    case Method::Range::flag:
      if (value != 0 && value != 1) return complain("it is a flag: 0 or 1");
      break;
  }
  return {};
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

Cohort take(const Cohort& from, const std::vector<std::size_t>& positions) {
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

}  // namespace

CohortOptimizer::CohortOptimizer(Method method, const std::vector<ParamGroup>& groups) : method_(std::move(method)) {
  std::unordered_map<const c10::TensorImpl*, std::size_t> seen;
  for (const ParamGroup& group : groups) {
    const std::size_t index = groups_.size();
    groups_.push_back(resolve(group));
    for (const at::Tensor& param : group.params) {
      check_parameter(method_.type, params_.size(), param);
      const auto [place, fresh] = seen.emplace(param.unsafeGetTensorImpl(), index);
      if (!fresh && place->second != index) {
        throw ConfigError(c10::str(method_.type, ": a parameter is in group ", place->second, " and in group ", index,
                                   "; put each into one group"));
      }
      if (!fresh) continue;  // tied: once
      names_.push_back("parameter." + std::to_string(params_.size()));
      params_.push_back(param);
      group_of_.push_back(index);
    }
  }
  if (params_.empty()) {
    throw ConfigError(method_.type + ": no parameters were given; a module that registers none cannot be trained");
  }
  make_cohorts();
}

Options CohortOptimizer::resolve(const ParamGroup& group) const {
  Options options;
  for (const Method::Option& option : method_.options) options[option.name] = option.value;
  const auto set = [&](const std::string& name, double value) {
    const auto place = options.find(name);
    if (place == options.end()) {
      std::string known;
      for (const auto& [option, unused] : options) known += (known.empty() ? "" : ", ") + option;
      throw ConfigError(c10::str(method_.type, ": a group sets '", name, "', which is no option; there are ", known));
    }
    place->second = value;
  };
  for (const auto& [name, value] : group.more) set(name, value);
  if (group.lr) set("lr", *group.lr);
  if (group.weight_decay) set("weight_decay", *group.weight_decay);
  if (const std::string wrong = complaint(options); !wrong.empty()) throw ConfigError(method_.type + ": " + wrong);
  return options;
}

std::string CohortOptimizer::complaint(const Options& options) const {
  for (const Method::Option& option : method_.options) {
    std::string wrong = range_complaint(option, options.at(option.name));
    if (!wrong.empty()) return wrong;
  }
  return method_.check != nullptr ? method_.check(options) : std::string();
}

void CohortOptimizer::make_cohorts() {
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

void CohortOptimizer::check_gradients() const {
  for (std::size_t i = 0; i < params_.size(); ++i) {
    const at::Tensor& grad = params_[i].grad();
    if (!grad.defined()) continue;
    const auto complain = [&](const std::string& what) {
      throw ConfigError(c10::str(method_.type, ": the gradient of '", names_[i], "' ", what));
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

void CohortOptimizer::check_momentum(const StepArgs& args) const {
  if (!args.momentum || method_.momentum.empty()) return;
  for (Options options : groups_) {
    double& value = options.at(method_.momentum);
    if (value == 0) continue;
    value = *args.momentum;
    if (value == 0) throw ConfigError(method_.type + ": a step's " + method_.momentum + " is 0; give one above 0");
    const std::string wrong = complaint(options);
    if (!wrong.empty()) throw ConfigError(method_.type + ", momentum of a step: " + wrong);
  }
}

void CohortOptimizer::split_idle_members() {
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

void CohortOptimizer::start(Cohort& cohort) {
  const Options& options = groups_[cohort.group];
  cohort.step = at::zeros({}, cohort.params[0].options().dtype(at::kFloat).requires_grad(false));
  cohort.steps.assign(cohort.params.size(), cohort.step);
  for (const std::string& name : method_.state_names(options)) {
    const double value = method_.initial_value != nullptr ? method_.initial_value(name, options) : 0.0;
    auto& list = cohort.state.emplace_back();
    for (const at::Tensor& param : cohort.params) list.push_back(at::full_like(param, value));
  }
}

void CohortOptimizer::gather(Cohort& cohort, std::vector<at::Tensor>& grads) {
  grads.clear();
  grads.reserve(cohort.params.size());
  for (std::size_t i = 0; i < cohort.params.size(); ++i) {
    const at::Tensor& param = cohort.params[i];
    grads.push_back(param.grad());
    match_layout(grads.back(), param);
    for (auto& list : cohort.state) match_layout(list[i], param);
  }
}

KernelArgs CohortOptimizer::kernel_args(const Cohort& cohort, const StepArgs& args) const {
  KernelArgs kernel;
  kernel.options = groups_[cohort.group];
  double factor = args.lr_factor;
  if (!args.group_lr_factors.empty()) {
    factor = args.group_lr_factors[cohort.group];
  } else if (args.lr_factor_tensor.defined()) {
    if (args.lr_factor_tensor.is_cpu()) {
      factor = *args.lr_factor_tensor.const_data_ptr<float>();
    } else {
      kernel.lr_tensor = args.lr_factor_tensor * kernel["lr"];
    }
  }
  kernel.lr = kernel["lr"] * factor;
  if (args.found_inf.defined()) kernel.found_inf = args.found_inf;
  if (args.momentum && !method_.momentum.empty() && kernel.options[method_.momentum] != 0) {
    kernel.options[method_.momentum] = *args.momentum;
  }
  return kernel;
}

void CohortOptimizer::step(const StepArgs& args) {
  if (!args.group_lr_factors.empty() && args.group_lr_factors.size() != groups_.size()) {
    throw ConfigError(c10::str(method_.type, ": ", args.group_lr_factors.size(), " learning-rate factors for ",
                               groups_.size(), " groups; give one a group"));
  }
  check_gradients();
  check_momentum(args);
  const c10::AutoGradMode no_grad(false);
  split_idle_members();
  std::vector<at::Tensor> grads;
  for (Cohort& cohort : cohorts_) {
    if (!cohort.params[0].grad().defined()) continue;
    if (!cohort.step.defined()) start(cohort);
    gather(cohort, grads);
    cohort.step.add_(1);
    apply(cohort, grads, kernel_args(cohort, args));
    if (args.found_inf.defined()) cohort.step.sub_(args.found_inf);
  }
}

void CohortOptimizer::zero_grad(bool set_to_none) {
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

double CohortOptimizer::lr(std::size_t group) const {
  if (group >= groups_.size()) {
    throw ConfigError(c10::str(method_.type, ": there is no group ", group, ", only ", groups_.size()));
  }
  return groups_[group].at("lr");
}

void CohortOptimizer::set_lr(double value, std::size_t group) {
  lr(group);  // checks the index
  const std::string wrong = range_complaint({"lr", value, Method::Range::not_negative}, value);
  if (!wrong.empty()) throw ConfigError(method_.type + ": " + wrong);
  groups_[group]["lr"] = value;
}

void CohortOptimizer::name_parameters(const NamedTensors& named) {
  std::unordered_map<const c10::TensorImpl*, std::string> names;
  for (const auto& [name, tensor] : named) names.emplace(tensor.unsafeGetTensorImpl(), name);
  for (std::size_t i = 0; i < params_.size(); ++i) {
    const auto found = names.find(params_[i].unsafeGetTensorImpl());
    if (found != names.end()) names_[i] = found->second;
  }
}

OptimizerState CohortOptimizer::state() const {
  OptimizerState result;
  result.type = method_.type;
  result.groups = groups_;
  for (const std::string& name : names_) result.parameters[name];
  for (const Cohort& cohort : cohorts_) {
    if (!cohort.step.defined()) continue;
    const auto state_names = method_.state_names(groups_[cohort.group]);
    for (std::size_t i = 0; i < cohort.members.size(); ++i) {
      auto& entry = result.parameters[names_[cohort.members[i]]];
      entry["step"] = cohort.step.clone();
      for (std::size_t s = 0; s < state_names.size(); ++s) entry[state_names[s]] = cohort.state[s][i];
    }
  }
  return result;
}

StateBytes CohortOptimizer::state_bytes() const {
  StateBytes bytes;
  for (const Cohort& cohort : cohorts_) {
    const auto lists = static_cast<int64_t>(method_.state_names(groups_[cohort.group]).size());
    const bool started = cohort.step.defined();
    int64_t of_cohort = 0;
    bool steps = started;
    for (const at::Tensor& param : cohort.params) {
      if (!started && !param.requires_grad()) continue;
      of_cohort += lists * static_cast<int64_t>(param.nbytes());
      steps = true;
    }
    if (steps) of_cohort += static_cast<int64_t>(sizeof(float));  // the step number
    (started ? bytes.now : bytes.to_come) += of_cohort;
  }
  return bytes;
}

void CohortOptimizer::check_saved(const OptimizerState& saved) const {
  const auto complain = [&](const std::string& what) {
    throw StateError(method_.type + ": " + what + "; nothing was loaded");
  };
  if (saved.type != method_.type) complain("the saved state is of " + saved.type);
  if (saved.groups.size() != groups_.size()) {
    complain(c10::str("the saved state has ", saved.groups.size(), " groups, this optimizer ", groups_.size()));
  }
  for (const Options& group : saved.groups) {
    for (const Method::Option& option : method_.options) {
      if (!group.contains(option.name)) complain("'" + option.name + "' is missing in a saved group");
    }
    for (const auto& [name, value] : group) {
      if (!groups_[0].contains(name)) complain("a saved group has '" + name + "', which is no option here");
    }
    if (const std::string wrong = complaint(group); !wrong.empty()) complain("in a saved group " + wrong);
  }
  for (const auto& [name, entry] : saved.parameters) {
    if (std::find(names_.begin(), names_.end(), name) == names_.end()) {
      complain("the saved parameter '" + name + "' does not exist here");
    }
  }
  for (std::size_t i = 0; i < params_.size(); ++i) check_saved_parameter(i, saved);
}

void CohortOptimizer::check_saved_parameter(std::size_t index, const OptimizerState& saved) const {
  const auto complain = [&](const std::string& what) {
    throw StateError(method_.type + ": " + what + "; nothing was loaded");
  };
  const at::Tensor& param = params_[index];
  const std::string& name = names_[index];
  const auto found = saved.parameters.find(name);
  if (found == saved.parameters.end()) complain("'" + name + "' is missing in the saved state");
  const auto& entry = found->second;
  if (entry.empty()) return;
  if (!entry.contains("step")) complain("'step' of '" + name + "' is missing in the saved state");
  const auto state_names = method_.state_names(saved.groups[group_of_[index]]);
  for (const std::string& key : state_names) {
    const auto item = entry.find(key);
    if (item == entry.end()) complain("'" + key + "' of '" + name + "' is missing in the saved state");
    if (item->second.sizes() != param.sizes() || item->second.scalar_type() != param.scalar_type()) {
      complain(c10::str("'", key, "' of '", name, "' is ", item->second.scalar_type(), item->second.sizes(),
                        ", the parameter ", param.scalar_type(), param.sizes()));
    }
  }
  for (const auto& [key, tensor] : entry) {
    if (key == "step" || std::find(state_names.begin(), state_names.end(), key) != state_names.end()) continue;
    complain("'" + key + "' of '" + name + "' has no place here");
  }
}

Cohort CohortOptimizer::restored(std::size_t group, std::vector<std::size_t> members,
                                 const OptimizerState& saved) const {
  Cohort cohort;
  cohort.group = group;
  cohort.members = std::move(members);
  for (const std::size_t i : cohort.members) cohort.params.push_back(params_[i]);
  const auto& first = saved.parameters.at(names_[cohort.members[0]]);
  if (first.empty()) return cohort;
  cohort.step = first.at("step").detach().to(cohort.params[0].device(), at::kFloat, false, true);
  cohort.steps.assign(cohort.params.size(), cohort.step);
  for (const std::string& name : method_.state_names(saved.groups[group])) {
    auto& list = cohort.state.emplace_back();
    for (const std::size_t i : cohort.members) {
      const at::Tensor& source = saved.parameters.at(names_[i]).at(name);
      list.push_back(at::empty_like(params_[i], params_[i].options().dtype(source.scalar_type()).requires_grad(false))
                         .copy_(source));
    }
  }
  return cohort;
}

void CohortOptimizer::load_state(const OptimizerState& saved) {
  check_saved(saved);
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
  groups_ = saved.groups;
}

}  // namespace saturate::optim
