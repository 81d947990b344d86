// SPDX-License-Identifier: Apache-2.0
#include "saturate/distributed/sync_every.hpp"

#include "same_model.hpp"
#include "saturate/distributed/average_over_ranks.hpp"
#include "saturate/distributed/sharded_optimizer.hpp"
#include "saturate/distributed/sync_batch_norm.hpp"
#include "saturate/error.hpp"
#include "saturate/log.hpp"
#include "saturate/trainer/count.hpp"
#include "saturate/trainer/events.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <torch/nn/module.h>

#include <map>
#include <unordered_set>
#include <utility>

namespace saturate {
namespace {

using StateByName = std::map<std::string, std::map<std::string, at::Tensor>>;

/// A tensor of an optimizer's state, or none.
at::Tensor state_tensor(const StateByName& states, const std::string& parameter, const std::string& name) {
  const auto of_parameter = states.find(parameter);
  if (of_parameter == states.end()) return {};
  const auto found = of_parameter->second.find(name);
  return found == of_parameter->second.end() ? at::Tensor() : found->second;
}

bool can_be_averaged(const at::Tensor& tensor) {
  return tensor.defined() && (tensor.is_floating_point() || tensor.is_complex());
}

/// Of each tensor, whether every rank has it.
std::vector<bool> on_every_rank(const std::vector<at::Tensor>& tensors, const distributed::ProcessGroup& hosts) {
  at::Tensor here = at::zeros({static_cast<int64_t>(tensors.size())}, at::kInt);
  for (std::size_t i = 0; i < tensors.size(); ++i) here[static_cast<int64_t>(i)] = can_be_averaged(tensors[i]) ? 1 : 0;
  if (!tensors.empty()) hosts.all_reduce(here, distributed::ReduceOp::min);
  std::vector<bool> result;
  for (std::size_t i = 0; i < tensors.size(); ++i) result.push_back(here[static_cast<int64_t>(i)].item<int>() != 0);
  return result;
}

/// @param wanted parameter by parameter, each under all names in their order.
void warn_if_nowhere(const std::vector<at::Tensor>& wanted, std::size_t name, const std::vector<std::string>& names) {
  for (std::size_t i = name; i < wanted.size(); i += names.size()) {
    if (can_be_averaged(wanted[i])) return;
  }
  log::warn_once("SyncEvery optimizer_state " + names[name],
                 "SyncEvery: the optimizer keeps no floating-point state of the name \"" + names[name] +
                     "\", so nothing of it is averaged. OptimizerState::parameters has the names");
}

/// What is averaged, and parameters that are then made from their averaged wide copies.
struct ToAverage {
  std::vector<at::Tensor> tensors;
  std::vector<std::pair<at::Tensor, at::Tensor>> rounded_from;  // parameter, master

  void add_model(const torch::nn::Module& module, const StateByName& states) {
    std::unordered_set<const c10::TensorImpl*> seen;
    for (const auto& item : module.named_parameters()) {
      const at::Tensor& parameter = item.value();
      if (!parameter.requires_grad() || !seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
      const at::Tensor master = state_tensor(states, item.key(), "master");
      if (master.defined()) rounded_from.emplace_back(parameter, master);
      tensors.push_back(master.defined() ? master : parameter);
    }
    for (const at::Tensor& buffer : module.buffers()) {
      if (can_be_averaged(buffer) && seen.insert(buffer.unsafeGetTensorImpl()).second) tensors.push_back(buffer);
    }
  }

  void add_state(const torch::nn::Module& module, const StateByName& states, const std::vector<std::string>& names,
                 const distributed::ProcessGroup& hosts) {
    std::vector<at::Tensor> wanted;
    for (const auto& item : module.named_parameters()) {
      for (const std::string& name : names) wanted.push_back(state_tensor(states, item.key(), name));
    }
    for (std::size_t i = 0; i < names.size() && !wanted.empty(); ++i) warn_if_nowhere(wanted, i, names);
    const auto everywhere = on_every_rank(wanted, hosts);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (everywhere[i]) tensors.push_back(wanted[i]);
    }
  }
};

}  // namespace

void SyncEveryOptions::validate() const {
  const auto require = [](bool holds, const std::string& what) {
    if (!holds) throw ConfigError("SyncEveryOptions: " + what);
  };
  require(windows >= 1, c10::str("windows is ", windows, "; give 1 or more"));
  require(chunk_bytes >= 1, c10::str("chunk_bytes is ", chunk_bytes, "; give a positive number"));
  for (const std::string& name : optimizer_state) require(!name.empty(), "optimizer_state has an empty name");
}

struct SyncEvery::State {
  torch::nn::Module* module = nullptr;
  optim::Optimizer* optimizer = nullptr;  // of the last step
  distributed::ProcessGroup hosts;        // between CPUs: no GPU is waited for
  int64_t windows = 0;                    // seen by this rank
  int64_t since = 0;                      // the last average
  int64_t averages = 0;
  int evaluating = 0;
  bool wants_stop = false, stops = false;
  Count window_targets;  // of the window that runs
  Count targets;         // of the steps taken since the last average

  void took_window(const at::Tensor& refused) {
    ++windows;
    ++since;
    Count taken = std::exchange(window_targets, Count());
    if (refused.defined()) {
      const at::Tensor kept = (1 - refused).to(at::kDouble);
      taken = taken.on_host() ? Count(kept * taken.host) : Count(kept * taken.device);
    }
    targets += taken;
  }
};

SyncEvery::SyncEvery(distributed::ProcessGroup group, SyncEveryOptions options)
    : group_(std::move(group)), options_(std::move(options)), state_(std::make_shared<State>()) {}

void SyncEvery::attach(torch::nn::Module& module, c10::Device device) {
  if (alone()) return;
  if (device.type() != group_.device().type()) {
    throw ConfigError("SyncEvery: the model is on " + device.str() + ", the process group is for " +
                      group_.device().str());
  }
  if (distributed::has_sync_batch_norm(module)) {
    throw ConfigError(
        "SyncEvery: the model has SyncBatchNorm, whose forward waits for all ranks; between averages they do not train "
        "together. Use BatchNorm (its statistics are averaged), or Ddp");
  }
  distributed::detail::require_same_model(module, group_, "SyncEvery");
  distributed::detail::broadcast_model(module, group_);
  state_->hosts = group_.beside("sync_every");
  state_->module = &module;
}

void SyncEvery::reduce_count(double& host, at::Tensor& device) {
  if (alone()) return;
  if (state_->evaluating == 0) {
    // A loss that counts in its forward pass comes a second time, with the number that holds.
    state_->window_targets = device.defined() ? Count(device.to(at::kDouble)) : Count(host);
    return;
  }
  if (!device.defined()) device = at::full({}, host, at::TensorOptions(group_.device()).dtype(at::kDouble));
  device = device.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
  group_.all_reduce(device);
}

void SyncEvery::reduce_loss(at::Tensor& loss_sum) {
  // A rank without data has none.
  if (!loss_sum.defined()) loss_sum = at::zeros({}, at::TensorOptions(group_.device()).dtype(at::kFloat));
}

void SyncEvery::reduce_sum(at::Tensor& sum) {
  if (alone()) return;
  sum = sum.clone();
  group_.all_reduce(sum);
}

void SyncEvery::after_step(const at::Tensor& refused, optim::Optimizer* optimizer) {
  if (alone()) return;
  state_->optimizer = optimizer;
  state_->took_window(refused);
  if (state_->windows % options_.windows == 0) average();
}

void SyncEvery::average() {
  if (alone()) return;
  if (state_->module == nullptr) throw StateError("SyncEvery: average() before attach(); attach the model first");
  check_in();
  const at::NoGradGuard no_grad;
  StateByName states;
  if (state_->optimizer != nullptr) states = state_->optimizer->state().parameters;
  ToAverage what;
  what.add_model(*state_->module, states);
  what.add_state(*state_->module, states, options_.optimizer_state, state_->hosts);
  distributed::average_over_ranks(what.tensors, group_, {.share = share(), .chunk_bytes = options_.chunk_bytes});
  for (const auto& [parameter, master] : what.rounded_from) parameter.detach().copy_(master);
  state_->targets = Count();
  state_->since = 0;
  ++state_->averages;
}

/// Ranks are at the same window, and tell whether they want to stop. @return whether any has trained since the last
/// average.
bool SyncEvery::check_in() const {
  at::Tensor mine = at::zeros({3}, at::kLong);
  mine[0] = state_->windows;
  mine[1] = state_->since;
  mine[2] = state_->wants_stop ? 1 : 0;
  const at::Tensor all = state_->hosts.all_gather(mine);
  const auto said = [&](int64_t rank, int64_t what) { return all[rank][what].item<int64_t>(); };
  bool any_trained = false;
  for (int64_t rank = 0; rank < group_.world_size(); ++rank) {
    if (said(rank, 0) != said(0, 0)) {
      throw StateError(c10::str("SyncEvery: rank ", rank, " has trained ", said(rank, 0), " windows, rank 0 has ",
                                said(0, 0),
                                ". Every rank trains the same number: a window that an exception has "
                                "left does not count"));
    }
    any_trained = any_trained || said(rank, 1) > 0;
    state_->stops = state_->stops || said(rank, 2) != 0;
  }
  return any_trained;
}

/// 0-dim, on the device; undefined: equal.
at::Tensor SyncEvery::share() const {
  if (options_.share == RankShare::equal) return {};
  const Count& targets = state_->targets;
  const auto options = at::TensorOptions(group_.device()).dtype(at::kDouble);
  const at::Tensor mine = targets.on_host() ? at::full({}, targets.host, options) : targets.device.to(options);
  at::Tensor total = mine.clone();
  group_.all_reduce(total);
  // Nobody has learnt anything: weights are the same on all ranks already.
  return at::where(total > 0, mine / total, at::full({}, 1.0 / group_.world_size(), options));
}

SyncEvery::EvaluationScope::EvaluationScope(SyncEvery* policy) : policy_(policy) {
  if (policy_->alone() || policy_->state_->module == nullptr) return;
  policy_->check_in();
  const at::NoGradGuard no_grad;
  ToAverage what;
  what.add_model(*policy_->state_->module, {});
  for (const at::Tensor& tensor : what.tensors) own_.push_back(tensor.detach().clone());
  distributed::average_over_ranks(what.tensors, policy_->group_,
                                  {.share = policy_->share(), .chunk_bytes = policy_->options_.chunk_bytes});
  ++policy_->state_->evaluating;
}

SyncEvery::EvaluationScope::~EvaluationScope() {
  if (policy_->alone() || policy_->state_->module == nullptr) return;
  const at::NoGradGuard no_grad;
  ToAverage what;
  what.add_model(*policy_->state_->module, {});
  for (std::size_t i = 0; i < own_.size(); ++i) what.tensors[i].detach().copy_(own_[i]);
  --policy_->state_->evaluating;
}

void SyncEvery::check_optimizer(const optim::Optimizer& optimizer) const {
  if (alone() || dynamic_cast<const distributed::ShardedOptimizer*>(&optimizer) == nullptr) return;
  throw ConfigError(
      "SyncEvery: ShardedOptimizer keeps one state for all ranks, and here each rank steps on its own gradients. Give "
      "it the inner optimizer, or use Ddp");
}

void SyncEvery::require_even(std::optional<int64_t> windows, std::optional<int64_t>) const {
  if (alone() || options_.uneven == UnevenInputs::join) return;
  const auto texts = state_->hosts.gather_text(windows ? std::to_string(*windows) : "an unknown number of");
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    throw ConfigError(c10::str("SyncEvery: rank ", rank, " has ", texts[rank], " windows an epoch, rank 0 has ",
                               texts[0],
                               ": the others would wait for it for ever. Shard the data equally "
                               "(LoaderOptions: ranks, and Uneven::pad or drop), or let ranks join: "
                               "SyncEveryOptions::uneven = UnevenInputs::join"));
  }
}

bool SyncEvery::any_has_data(bool here) const {
  return alone() || options_.uneven == UnevenInputs::refuse ? here : state_->hosts.any(here);
}

bool SyncEvery::any_stops(bool here) {
  if (alone()) return here;
  state_->wants_stop = state_->wants_stop || here;
  return state_->stops;
}

bool SyncEvery::agree_to_stop(bool here) {
  if (alone()) return here;
  state_->stops = state_->hosts.any(here || state_->wants_stop);
  return state_->stops;
}

void SyncEvery::on_fit_begin(const FitBegin& event) {
  state_->windows = event.state.window;  // a run that goes on averages where the unbroken one would
  state_->wants_stop = state_->stops = false;
}

void SyncEvery::on_fit_end(const FitEnd& event) {
  if (alone() || event.failed) return;
  if (check_in()) average();
  state_->optimizer = nullptr;  // it may be gone when somebody averages by hand
}

int64_t SyncEvery::averages() const { return state_->averages; }

}  // namespace saturate
