// SPDX-License-Identifier: Apache-2.0
#include "saturate/optim/decay_groups.hpp"

#include "saturate/error.hpp"

#include <c10/util/StringUtil.h>
#include <torch/nn/module.h>

#include <cmath>
#include <functional>
#include <regex>
#include <unordered_map>

namespace saturate::optim {
namespace {

struct Parameter {
  at::Tensor tensor;
  std::vector<std::string> names;
};

// Each once, with all of its names, in the module's order.
std::vector<Parameter> distinct(const torch::nn::Module& module) {
  std::vector<Parameter> result;
  std::unordered_map<const c10::TensorImpl*, std::size_t> seen;
  for (const auto& item : module.named_parameters()) {
    const auto [place, fresh] = seen.emplace(item.value().unsafeGetTensorImpl(), result.size());
    if (fresh) result.push_back({item.value(), {}});
    result[place->second].names.push_back(item.key());
  }
  return result;
}

std::vector<ParamGroup> split(const std::vector<Parameter>& parameters, double weight_decay,
                              const std::function<bool(const Parameter&)>& decays) {
  if (!std::isfinite(weight_decay) || weight_decay < 0) {
    throw ConfigError(c10::str("decay_groups: weight_decay is ", weight_decay, "; give a finite value of 0 or more"));
  }
  std::vector<ParamGroup> groups(2);
  groups[0].weight_decay = weight_decay;
  groups[1].weight_decay = 0.0;
  for (const Parameter& parameter : parameters) groups[decays(parameter) ? 0 : 1].params.push_back(parameter.tensor);
  return groups;
}

bool matches(const Parameter& parameter, const std::regex& pattern) {
  for (const std::string& name : parameter.names) {
    if (std::regex_match(name, pattern)) return true;
  }
  return false;
}

std::regex compiled(const std::string& pattern) {
  try {
    return std::regex(pattern);
  } catch (const std::regex_error& error) {
    throw ConfigError("decay_groups: '" + pattern + "' is no regular expression: " + error.what());
  }
}

void require_match(const std::vector<Parameter>& parameters, const std::regex& compiled, const std::string& pattern) {
  std::string names;
  for (const Parameter& parameter : parameters) {
    if (matches(parameter, compiled)) return;
    for (const std::string& name : parameter.names) names += "\n  " + name;
  }
  throw ConfigError("decay_groups: no parameter's whole name matches '" + pattern + "'; there are:" + names);
}

}  // namespace

std::vector<ParamGroup> decay_groups(const torch::nn::Module& module, double weight_decay) {
  return split(distinct(module), weight_decay, [](const Parameter& p) { return p.tensor.dim() >= 2; });
}

std::vector<ParamGroup> decay_groups(const torch::nn::Module& module, double weight_decay,
                                     const std::vector<std::string>& no_decay) {
  const std::vector<Parameter> parameters = distinct(module);
  std::vector<std::regex> patterns;
  for (const std::string& pattern : no_decay) {
    patterns.push_back(compiled(pattern));
    require_match(parameters, patterns.back(), pattern);
  }
  return split(parameters, weight_decay, [&](const Parameter& parameter) {
    for (const std::regex& pattern : patterns) {
      if (matches(parameter, pattern)) return false;
    }
    return true;
  });
}

}  // namespace saturate::optim
