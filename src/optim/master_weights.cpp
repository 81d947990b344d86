// SPDX-License-Identifier: Apache-2.0
#include "saturate/optim/master_weights.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/where.h>
#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>

namespace saturate::optim {

void MasterWeights::note_versions() {
  versions_.clear();
  for (const Pair& pair : pairs()) versions_.push_back(static_cast<uint32_t>(pair.param._version()));
}

void MasterWeights::prepare() {
  for (std::size_t i = 0; i < pairs().size(); ++i) {
    Pair pair = pairs()[i];
    if (!pair.widened()) continue;
    if (pair.wide.strides() != pair.param.strides()) {  // the parameter has changed its memory format
      pair.wide.set_data(at::empty_like(pair.param, at::kFloat).copy_(pair.wide));
    }
    if (versions_[i] == static_cast<uint32_t>(pair.param._version())) continue;
    // Somebody wrote to the parameter. Where it still is the rounded copy (weights swapped out and back) the copy
    // stays.
    const at::Tensor same = pair.wide.to(pair.param.scalar_type()) == pair.param;
    pair.wide.copy_(at::where(same, pair.wide, pair.param.to(at::kFloat)));
  }
}

void MasterWeights::write_back() {
  std::vector<at::Tensor> params, masters;
  for (const Pair& pair : pairs()) {
    if (!pair.widened() || !pair.wide.grad().defined()) continue;
    params.push_back(pair.param);
    masters.push_back(pair.wide);
  }
  if (!params.empty()) at::_foreach_copy_(params, masters);
  note_versions();
}

OptimizerState MasterWeights::state() const {
  OptimizerState result = inner().state();
  result.type = state_type(result);
  for (const Pair& pair : pairs()) {
    if (pair.widened()) result.parameters[pair.name]["master"] = pair.wide.detach();
  }
  return result;
}

void MasterWeights::load_state(const OptimizerState& saved) {
  const OptimizerState now = inner().state();
  if (saved.type != state_type(now)) refuse_state("the saved state is of " + saved.type);
  OptimizerState rest = saved;
  rest.type = now.type;
  std::vector<at::Tensor> masters;
  for (const Pair& pair : pairs()) {
    if (!pair.widened()) continue;
    const auto entry = rest.parameters.find(pair.name);
    if (entry == rest.parameters.end()) refuse_state("'" + pair.name + "' is missing in the saved state");
    const auto master = entry->second.find("master");
    if (master == entry->second.end()) refuse_state("'master' of '" + pair.name + "' is missing in the saved state");
    const at::Tensor& value = master->second;
    if (value.sizes() != pair.wide.sizes() || value.scalar_type() != at::kFloat) {
      refuse_state(c10::str("'master' of '", pair.name, "' is ", value.scalar_type(), value.sizes(), ", not Float",
                            pair.wide.sizes()));
    }
    masters.push_back(value);
    entry->second.erase(master);
  }
  inner().load_state(rest);  // the last that can refuse
  const c10::AutoGradMode no_grad(false);
  std::size_t next = 0;
  for (Pair pair : pairs()) {
    if (!pair.widened()) continue;
    pair.wide.copy_(masters[next++]);
    pair.param.copy_(pair.wide);
  }
  note_versions();
}

}  // namespace saturate::optim
