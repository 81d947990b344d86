// SPDX-License-Identifier: Apache-2.0
// The state of a ShardedOptimizer: gathered on every rank, and taken from any number of ranks.
#include "saturate/error.hpp"
#include "sharded_impl.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

namespace saturate::distributed {
namespace {

using optim::OptimizerState;
using sharding::Announced;
using sharding::run_on_all;
using sharding::stand_in_name;
using sharding::type_name;

OptimizerState copied(const OptimizerState& state) {
  OptimizerState copy = state;
  for (auto& [name, entry] : copy.parameters) {
    for (auto& [key, tensor] : entry) tensor = tensor.detach().clone();
  }
  return copy;
}

std::string text_of(const Announced& item) {
  std::ostringstream text;
  text << item.parameter << " " << item.dtype << " " << item.sizes.size();
  for (const int64_t size : item.sizes) text << " " << size;
  text << " " << item.key << "\n";
  return text.str();
}

/// By dtype: each is one message.
std::map<int, std::vector<Announced>> read_announced(const std::string& text) {
  std::map<int, std::vector<Announced>> items;
  std::istringstream lines(text);
  std::size_t dimensions = 0;
  for (Announced item; lines >> item.parameter >> item.dtype >> dimensions;) {
    item.sizes.resize(dimensions);
    for (int64_t& size : item.sizes) lines >> size;
    lines.get();
    std::getline(lines, item.key);
    items[item.dtype].push_back(item);
  }
  return items;
}

}  // namespace

OptimizerState ShardedOptimizer::local_state() const {
  impl_->wait();
  OptimizerState state = impl_->inner->state();
  state.parameters.erase(stand_in_name);
  return state;
}

std::vector<Announced> ShardedOptimizer::Impl::announced(const OptimizerState& state) const {
  std::vector<Announced> items;
  for (const std::size_t i : mine) {
    for (const auto& [key, tensor] : state.parameters.at(names[i])) {
      items.push_back({i, static_cast<int>(tensor.scalar_type()), tensor.sizes().vec(), key});
    }
  }
  return items;
}

void ShardedOptimizer::Impl::receive_state(int from, const std::string& text, OptimizerState& state) const {
  for (const auto& [dtype, items] : read_announced(text)) {
    std::vector<at::Tensor> parts;
    int64_t numel = 0;
    for (const Announced& item : items) {
      numel += item.numel();
      if (from == group.rank()) {
        parts.push_back(
            state.parameters.at(names[item.parameter]).at(item.key).detach().to(group.device()).reshape({-1}));
      }
    }
    const auto options = at::TensorOptions(group.device()).dtype(static_cast<at::ScalarType>(dtype));
    const at::Tensor flat = parts.empty() ? at::empty({numel}, options) : at::cat(parts);
    if (numel > 0) group.broadcast(flat, from);
    if (from == group.rank()) continue;
    int64_t begin = 0;
    for (const Announced& item : items) {
      // A copy: a view would be saved with the whole message.
      const at::Tensor value = flat.narrow(0, begin, item.numel()).view(item.sizes).clone();
      state.parameters[names[item.parameter]][item.key] = value.to(params[item.parameter].device());
      begin += item.numel();
    }
  }
}

OptimizerState ShardedOptimizer::state() const {
  if (impl_->alone()) return impl_->inner->state();
  const at::NoGradGuard no_grad;
  OptimizerState state;
  const auto texts = run_on_all<StateError>(impl_->group, [&] {
    state = local_state();
    std::string text;
    for (const Announced& item : impl_->announced(state)) text += text_of(item);
    return text;
  });
  for (const std::string& name : impl_->names) state.parameters[name];
  for (int rank = 0; rank < impl_->group.world_size(); ++rank) {
    impl_->receive_state(rank, texts[static_cast<std::size_t>(rank)], state);
  }
  return state;
}

OptimizerState ShardedOptimizer::Impl::own_part(const OptimizerState& full) const {
  for (const auto& [name, entry] : full.parameters) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      throw StateError(
          c10::str(type_name, ": the saved parameter '", name, "' does not exist here; nothing was loaded"));
    }
  }
  OptimizerState part{.type = full.type, .parameters = {}, .groups = full.groups};
  for (std::size_t i = 0; i < params.size(); ++i) {
    const auto found = full.parameters.find(names[i]);
    if (found == full.parameters.end()) {
      throw StateError(c10::str(type_name, ": '", names[i], "' is missing in the saved state; nothing was loaded"));
    }
    if (own(i)) part.parameters.insert(*found);
  }
  if (stand_in.defined()) part.parameters[stand_in_name] = inner->state().parameters.at(stand_in_name);
  return part;
}

void ShardedOptimizer::load_state(const OptimizerState& saved) {
  if (impl_->alone()) return impl_->inner->load_state(saved);
  impl_->wait();
  const at::NoGradGuard no_grad;
  // A rank finds out only when it loads whether it can; the others then go back.
  std::optional<OptimizerState> before;
  std::vector<at::Tensor> params_before;
  try {
    run_on_all<StateError>(impl_->group, [&] {
      const OptimizerState part = impl_->own_part(saved);
      OptimizerState kept = copied(impl_->inner->state());
      for (const std::size_t i : impl_->mine) {
        if (impl_->widens) params_before.push_back(impl_->params[i].detach().clone());
      }
      impl_->inner->load_state(part);
      before = std::move(kept);
      return std::string();
    });
  } catch (const StateError&) {
    if (before) {
      impl_->inner->load_state(*before);
      for (std::size_t k = 0; k < params_before.size(); ++k) {
        impl_->params[impl_->mine[k]].detach().copy_(params_before[k]);
      }
    }
    throw;
  }
  if (!impl_->widens) return;
  impl_->send();  // parameters became their loaded copies, rounded
  impl_->wait();
}

}  // namespace saturate::distributed
