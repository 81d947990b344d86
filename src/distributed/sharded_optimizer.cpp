// SPDX-License-Identifier: Apache-2.0
#include "saturate/distributed/sharded_optimizer.hpp"

#include "saturate/distributed/comm_hook.hpp"
#include "saturate/error.hpp"
#include "saturate/optim/wide_optimizer.hpp"
#include "sharded_impl.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>
#include <torch/optim/lbfgs.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <sstream>
#include <string>
#include <tuple>
#include <typeinfo>
#include <unordered_map>

namespace saturate::distributed {
namespace {

using optim::OptimizerState;
using optim::ParamGroup;
using sharding::run_on_all;
using sharding::stand_in_name;
using sharding::type_name;

/// Every parameter once, with the number of its group.
struct Listed {
  std::vector<at::Tensor> params;
  std::vector<std::size_t> group_of;
};

Listed list_parameters(const std::vector<ParamGroup>& groups) {
  Listed listed;
  std::unordered_map<const c10::TensorImpl*, std::size_t> seen;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    for (const at::Tensor& param : groups[group].params) {
      if (!param.defined()) {
        throw ConfigError(c10::str(type_name, ": a parameter is undefined; construct the module before its optimizer"));
      }
      const auto [place, fresh] = seen.emplace(param.unsafeGetTensorImpl(), group);
      if (!fresh && place->second != group) {
        throw ConfigError(c10::str(type_name, ": a parameter is in group ", place->second, " and in group ", group,
                                   "; put each into one group"));
      }
      if (!fresh) continue;  // tied: once
      listed.params.push_back(param);
      listed.group_of.push_back(group);
    }
  }
  if (listed.params.empty()) throw ConfigError(c10::str(type_name, ": no parameters were given"));
  return listed;
}

/// One line a parameter.
std::string text_of(const Listed& listed) {
  std::ostringstream text;
  for (std::size_t i = 0; i < listed.params.size(); ++i) {
    const at::Tensor& param = listed.params[i];
    text << "parameter " << i << " " << param.sizes() << " " << param.scalar_type() << " of group "
         << listed.group_of[i] << (param.requires_grad() ? "" : ", frozen") << "\n";
  }
  return text.str();
}

/// One line for the type, and one a group.
std::string text_of(const optim::Optimizer& inner) {
  std::ostringstream text;
  text.precision(std::numeric_limits<double>::max_digits10);
  if (const auto* wrapped = dynamic_cast<const optim::TorchOptimizer*>(&inner)) {
    const torch::optim::Optimizer& torch = wrapped->torch_optimizer();
    text << typeid(torch).name() << "\n";
    return text.str();
  }
  OptimizerState state;
  try {
    state = inner.state();
  } catch (const StateError&) {  // has none by name
    state.type = typeid(inner).name();
  }
  text << state.type << "\n";
  for (std::size_t group = 0; group < state.groups.size(); ++group) {
    text << "group " << group << ":";
    for (const auto& [name, value] : state.groups[group]) text << " " << name << " " << value;
    text << "\n";
  }
  return text.str();
}

std::string first_difference(const std::string& theirs, const std::string& ours) {
  std::istringstream left(theirs), right(ours);
  std::string a, b;
  while (a == b && (left || right)) {
    if (!std::getline(left, a)) a = "nothing";
    if (!std::getline(right, b)) b = "nothing";
  }
  return a + " in place of " + b;
}

template <class E>
void require_equal(const std::vector<std::string>& texts, const std::string& what) {
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    throw E(c10::str(type_name, ": ", what, " of rank ", rank, " is not that of rank 0: ",
                     first_difference(texts[rank], texts[0]), ". Every rank makes the same one"));
  }
}

bool is_of_half_precision(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}

void clear_gradient(const at::Tensor& param, bool set_to_none) {
  at::Tensor& grad = param.mutable_grad();
  if (!grad.defined()) return;
  if (set_to_none) {
    grad.reset();
    return;
  }
  if (grad.requires_grad()) grad = grad.detach();
  grad.zero_();
}

}  // namespace

std::vector<int> owners_by_size(const std::vector<at::Tensor>& params, int ranks) {
  std::vector<std::size_t> order(params.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto place = [&](std::size_t i) {
    return std::tuple(!params[i].requires_grad(), -static_cast<int64_t>(params[i].nbytes()), i);
  };
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return place(a) < place(b); });
  std::vector<int> owners(params.size());
  std::vector<int64_t> bytes(static_cast<std::size_t>(ranks));
  for (const std::size_t i : order) {
    const auto least = std::min_element(bytes.begin(), bytes.end());
    owners[i] = static_cast<int>(least - bytes.begin());
    *least += static_cast<int64_t>(params[i].nbytes());
  }
  return owners;
}

// Setting up --------------------------------------------------------------------------------------------------------

std::vector<ParamGroup> ShardedOptimizer::Impl::own_groups(const std::vector<ParamGroup>& groups) {
  std::vector<ParamGroup> result = groups;
  for (ParamGroup& part : result) part.params.clear();
  bool any = false;
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (!own(i)) continue;
    result[group_of[i]].params.push_back(params[i]);
    any = true;
  }
  if (!any) {
    stand_in = at::empty({0}, params[0].options());
    result[0].params.push_back(stand_in);
  }
  return result;
}

void ShardedOptimizer::Impl::adopt(std::shared_ptr<optim::Optimizer> made) {
  if (made == nullptr) throw ConfigError(c10::str(type_name, ": the function that makes the optimizer returned none"));
  if (const auto* torch = dynamic_cast<const optim::TorchOptimizer*>(made.get())) {
    if (dynamic_cast<const torch::optim::LBFGS*>(&torch->torch_optimizer()) != nullptr) {
      throw ConfigError(c10::str(type_name, ": LBFGS needs all parameters at once; use it without sharding"));
    }
  }
  std::unordered_map<const c10::TensorImpl*, std::size_t> known;
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (own(i)) known.emplace(params[i].unsafeGetTensorImpl(), i);
  }
  const std::vector<at::Tensor> stepped = made->parameters();
  const std::vector<std::size_t> stepped_groups = made->groups();
  const std::size_t expected = stand_in.defined() ? 1 : known.size();
  bool fits = stepped.size() == expected;
  for (std::size_t i = 0; fits && i < stepped.size() && !stand_in.defined(); ++i) {
    const auto found = known.find(stepped[i].unsafeGetTensorImpl());
    fits = found != known.end();
    if (!fits) break;
    if (stepped_groups[i] != group_of[found->second]) {
      throw ConfigError(c10::str(type_name,
                                 ": the optimizer that was made has other groups than were given; give "
                                 "groups to ShardedOptimizer, and make the optimizer from those it hands over"));
    }
    mine.push_back(found->second);
  }
  if (!fits) {
    throw ConfigError(
        c10::str(type_name, ": the optimizer must be made over exactly the parameters that its maker is given"));
  }
  inner = std::move(made);
  widens = dynamic_cast<const optim::WideOptimizer*>(inner.get()) != nullptr;
  wide_grads.resize(params.size());
}

void ShardedOptimizer::Impl::name_inner() {
  optim::NamedTensors named;
  for (const std::size_t i : mine) named.emplace_back(names[i], params[i]);
  if (stand_in.defined()) named.emplace_back(stand_in_name, stand_in);
  inner->name_parameters(named);
}

ShardedOptimizer::ShardedOptimizer(const Maker& make, ProcessGroup group, std::vector<ParamGroup> groups)
    : impl_(std::make_unique<Impl>()) {
  Impl& impl = *impl_;
  impl.group = std::move(group);
  Listed listed;
  require_equal<StateError>(run_on_all<ConfigError>(impl.group,
                                                    [&] {
                                                      listed = list_parameters(groups);
                                                      return text_of(listed);
                                                    }),
                            "the list of parameters");
  impl.params = std::move(listed.params);
  impl.group_of = std::move(listed.group_of);
  impl.owners = owners_by_size(impl.params, impl.group.world_size());
  for (std::size_t i = 0; i < impl.params.size(); ++i) impl.names.push_back(c10::str("parameter.", i));
  const auto texts = run_on_all<ConfigError>(impl.group, [&] {
    impl.adopt(make(impl.alone() ? groups : impl.own_groups(groups)));
    return text_of(*impl.inner);
  });
  require_equal<ConfigError>(texts, "the optimizer");
  if (impl.alone()) return;
  impl.name_inner();
  // Owners send at the same time where the group has a thread for each (a GPU has its own way).
  if (impl.group.backend_name() == "gloo") {
    impl.group = impl.group.another("sharded optimizer", std::min(impl.group.world_size(), 8));
  }
}

ShardedOptimizer::~ShardedOptimizer() = default;
ShardedOptimizer::ShardedOptimizer(ShardedOptimizer&&) noexcept = default;
ShardedOptimizer& ShardedOptimizer::operator=(ShardedOptimizer&&) noexcept = default;

// A step -----------------------------------------------------------------------------------------------------------

// Of all parameters, which every rank has gradients of: so that all of them refuse.
void ShardedOptimizer::Impl::check_gradients() const {
  for (std::size_t i = 0; i < params.size(); ++i) {
    const at::Tensor& grad = params[i].grad();
    if (!grad.defined()) continue;
    if (grad.layout() != at::kStrided) {
      throw ConfigError(
          c10::str(type_name, ": the gradient of '", names[i], "' is sparse; make the embedding dense (sparse=false)"));
    }
    if (grad.scalar_type() != params[i].scalar_type() || grad.device() != params[i].device()) {
      throw ConfigError(c10::str(type_name, ": the gradient of '", names[i], "' is ", grad.scalar_type(), " on ",
                                 grad.device(), ", the parameter ", params[i].scalar_type(), " on ", params[i].device(),
                                 "; move the module before making the optimizer"));
    }
  }
}

void ShardedOptimizer::Impl::make_shards() {
  std::vector<bool> now;
  for (const at::Tensor& param : params) now.push_back(param.requires_grad());
  if (now == sent && !shards.empty()) return;
  std::map<std::tuple<int, at::ScalarType, int>, Shard> found;
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (!now[i] || params[i].numel() == 0) continue;
    Shard& shard = found[{owners[i], params[i].scalar_type(), params[i].device().index()}];
    shard.owner = owners[i];
    shard.params.push_back(params[i]);
    shard.numel += params[i].numel();
  }
  shards.clear();
  for (auto& [key, shard] : found) shards.push_back(std::move(shard));
  sent = std::move(now);
}

std::vector<at::Tensor> ShardedOptimizer::Impl::views(const Shard& shard, const at::Tensor& flat) {
  std::vector<at::Tensor> result;
  int64_t begin = 0;
  for (const at::Tensor& param : shard.params) {
    result.push_back(in_shape_of(param, flat.narrow(0, begin, param.numel())));
    begin += param.numel();
  }
  return result;
}

void ShardedOptimizer::Impl::send() {
  const at::NoGradGuard no_grad;
  make_shards();
  group.run("sending updated parameters", [&] {
    for (std::size_t i = 0; i < shards.size(); ++i) {
      const Shard& shard = shards[i];
      const at::Tensor flat = at::empty({shard.numel}, shard.params[0].options());
      if (shard.owner == group.rank()) at::_foreach_copy_(views(shard, flat), shard.params);
      std::vector<at::Tensor> tensors{flat};
      c10d::BroadcastOptions options;
      options.rootRank = shard.owner;
      options.timeout = group.timeout();
      under_way.push_back({i, flat, group.c10d()->broadcast(tensors, options)});
    }
  });
}

void ShardedOptimizer::Impl::wait() {
  if (under_way.empty()) return;
  const std::vector<Message> messages = std::exchange(under_way, {});
  group.run("waiting for updated parameters", [&] {
    for (const Message& message : messages) message.work->wait();
  });
  const at::NoGradGuard no_grad;
  for (const Message& message : messages) {
    const Shard& shard = shards[message.shard];
    if (shard.owner != group.rank()) at::_foreach_copy_(shard.params, views(shard, message.flat));
  }
}

void ShardedOptimizer::step(const optim::StepArgs& args) {
  start_step(args);
  wait();
}

void ShardedOptimizer::start_step(const optim::StepArgs& args) {
  if (impl_->alone()) return impl_->inner->step(args);
  impl_->wait();
  impl_->check_gradients();
  impl_->inner->step(args);
  // Also after a step that the host knows to be refused: whether it is, is a device's to know elsewhere, and ranks that
  // send would wait for one that does not.
  impl_->send();
}

void ShardedOptimizer::wait() const { impl_->wait(); }

void ShardedOptimizer::gather_gradients() {
  if (impl_->widens && !impl_->alone()) {
    impl_->check_gradients();
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < impl_->params.size(); ++i) {
      if (impl_->own(i) || !is_of_half_precision(impl_->params[i])) continue;
      at::Tensor& grad = impl_->params[i].mutable_grad();
      if (!grad.defined()) continue;
      at::Tensor& sum = impl_->wide_grads[i];
      sum = sum.defined() ? sum.add_(grad) : grad.detach().to(at::kFloat);
      grad.reset();
    }
  }
  impl_->inner->gather_gradients();
}

std::vector<at::Tensor> ShardedOptimizer::gradients() const {
  if (impl_->alone()) return impl_->inner->gradients();
  // Moves what is left where it belongs; which parameters there are does not change.
  if (impl_->widens) const_cast<ShardedOptimizer*>(this)->gather_gradients();
  std::vector<at::Tensor> result;
  for (std::size_t i = 0; i < impl_->params.size(); ++i) {
    result.push_back(impl_->wide_grads[i].defined() ? impl_->wide_grads[i] : impl_->params[i].grad());
  }
  const std::vector<at::Tensor> own = impl_->inner->gradients();
  for (std::size_t i = 0; i < impl_->mine.size(); ++i) result[impl_->mine[i]] = own[i];
  return result;
}

void ShardedOptimizer::zero_grad(bool set_to_none) {
  impl_->inner->zero_grad(set_to_none);
  for (std::size_t i = 0; i < impl_->params.size(); ++i) {
    if (impl_->own(i)) continue;
    clear_gradient(impl_->params[i], set_to_none);
    impl_->wide_grads[i].reset();
  }
}

// What it is asked -------------------------------------------------------------------------------------------------

std::vector<at::Tensor> ShardedOptimizer::parameters() const {
  impl_->wait();
  return impl_->params;
}

std::vector<std::size_t> ShardedOptimizer::groups() const { return impl_->group_of; }
double ShardedOptimizer::lr(std::size_t group) const { return impl_->inner->lr(group); }
void ShardedOptimizer::set_lr(double lr, std::size_t group) { impl_->inner->set_lr(lr, group); }
bool ShardedOptimizer::refuses_on_device() const { return impl_->inner->refuses_on_device(); }
const std::vector<int>& ShardedOptimizer::owners() const { return impl_->owners; }
optim::StateBytes ShardedOptimizer::state_bytes() const { return impl_->inner->state_bytes(); }

void ShardedOptimizer::name_parameters(const optim::NamedTensors& named) {
  std::unordered_map<const c10::TensorImpl*, std::string> names;
  for (const auto& [name, tensor] : named) names.emplace(tensor.unsafeGetTensorImpl(), name);
  for (std::size_t i = 0; i < impl_->params.size(); ++i) {
    const auto found = names.find(impl_->params[i].unsafeGetTensorImpl());
    if (found != names.end()) impl_->names[i] = found->second;
  }
  impl_->name_inner();
}

}  // namespace saturate::distributed
