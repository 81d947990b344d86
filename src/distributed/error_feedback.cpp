// SPDX-License-Identifier: Apache-2.0
#include "saturate/distributed/error_feedback.hpp"

#include "saturate/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

namespace saturate::distributed {
namespace {

/// 0-dim bool: neither inf nor NaN, in one pass.
at::Tensor all_finite(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return at::full({}, true, tensor.options().dtype(at::kBool));
  const auto [lowest, highest] = at::aminmax(tensor);
  return lowest.isfinite().logical_and_(highest.isfinite());
}

}  // namespace

struct ErrorFeedback::Window {
  int64_t number = 0;
  bool complete = false;                                              // its last bucket was given
  std::vector<std::shared_ptr<at::Tensor>> finite;                    // one a bucket; filled when it is reduced
  std::vector<c10::weak_intrusive_ptr<c10::ivalue::Future>> futures;  // weak: they hold gradients
  at::Tensor allowed;                                                 // 0-dim bool; undefined: nobody has refused it

  /// Normally nothing is left to be waited for; a window that was given up may have buckets on their way.
  void wait() const {
    for (const auto& weak : futures) {
      const auto future = weak.lock();
      if (future != nullptr && !future->completed()) future->wait();
    }
  }
};

c10::ScalarType ErrorFeedback::wide(c10::ScalarType gradients) {
  return gradients == at::kDouble ? at::kDouble : at::kFloat;
}

ErrorFeedback::Kept ErrorFeedback::zeros_for(const at::Tensor& parameter) {
  return {at::zeros({parameter.numel()}, parameter.options().dtype(wide(parameter.scalar_type()))), {}};
}

void ErrorFeedback::used_here(at::TensorList tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_cuda()) continue;
    tensor.record_stream(c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device()));
  }
}

void ErrorFeedback::take_share(const at::Tensor& gradients, const at::Tensor& residual) const {
  const double world = group().world_size();
  if (residual.defined()) {
    at::Tensor sum = gradients;
    at::add_out(sum, residual, gradients, 1 / world);  // one pass
  } else {
    gradients.div_(world);
  }
}

void ErrorFeedback::round_into(const Job& job, const Part& part, const at::Tensor& reduced) const {
  const at::Tensor gradients = job.gradients.narrow(0, part.offset, part.size);
  gradients.copy_(reduced);
  if (gradients.scalar_type() == reduced.scalar_type() || part.memory == nullptr) return;
  const at::Tensor& residual = part.memory->residual.next;
  if (residual.defined()) residual.add_(reduced - gradients, 1 / (job.factor * group().world_size()));
}

bool ErrorFeedback::compresses_now(const Bucket& bucket) const {
  return windows_ >= start_step_ && std::any_of(bucket.parameters.begin(), bucket.parameters.end(),
                                                [this](const at::Tensor& parameter) { return compresses(parameter); });
}

CommHook::Future ErrorFeedback::reduce(Bucket& bucket, double divisor) {
  const at::NoGradGuard no_grad;
  if (bucket.index == 0 || window_ == nullptr) begin_window();
  const at::Tensor gradients = bucket.gradients;
  Future reduced;
  if (compresses_now(bucket)) {
    auto job = std::make_shared<Job>();
    job->gradients = gradients;
    job->index = bucket.index;
    job->factor = group().world_size() / divisor;
    int64_t offset = 0;
    for (const at::Tensor& parameter : bucket.parameters) {
      auto memory = compresses(parameter) ? memory_of(parameter) : nullptr;
      if (memory != nullptr) recall(*memory);
      job->parts.push_back({std::move(memory), parameter, offset, parameter.numel()});
      offset += parameter.numel();
    }
    reduced = start(std::move(job));
  } else {
    if (measures()) note_error(bucket.index, {gradients / group().world_size()}, {at::zeros({}, gradients.options())});
    if (divisor != 1) gradients.div_(divisor);
    reduced = all_reduce(gradients);
  }
  if (windows_ >= start_step_) {
    auto finite = std::make_shared<at::Tensor>();
    window_->finite.push_back(finite);
    reduced = reduced->then(
        [finite, gradients](c10::ivalue::Future& done) {
          done.value();  // throws what went wrong
          const at::NoGradGuard no_grad;
          *finite = all_finite(gradients);
          return c10::IValue(gradients);
        },
        c10::TensorType::get());
  }
  window_->futures.emplace_back(reduced);
  if (bucket.last) {
    window_->complete = true;
    ++windows_;
  }
  return reduced;
}

void ErrorFeedback::wait() const {
  if (window_ != nullptr) window_->wait();
}

void ErrorFeedback::begin_window() {
  std::tie(completed_, applied_) = last_applied();
  window_ = std::make_shared<Window>();
  window_->number = begun_++;
}

std::pair<int64_t, at::Tensor> ErrorFeedback::last_applied() const {
  const std::pair<int64_t, at::Tensor> before{completed_, applied_};
  if (window_ == nullptr) return before;
  wait();
  if (!window_->complete || window_->finite.empty()) return before;
  std::vector<at::Tensor> finite;
  for (const auto& bucket : window_->finite) {
    if (!bucket->defined()) return before;  // its reduction has failed
    finite.push_back(*bucket);
  }
  at::Tensor applied = at::stack(finite).all();
  if (window_->allowed.defined()) applied.logical_and_(window_->allowed);
  return {window_->number, applied};
}

void ErrorFeedback::refuse(const at::Tensor& refused) {
  if (window_ == nullptr || !refused.defined()) return;
  const at::Tensor allowed = (refused.detach() == 0).reshape({});
  window_->allowed = window_->allowed.defined() ? window_->allowed.logical_and(allowed) : allowed;
}

void ErrorFeedback::scaled_by(const at::Tensor& scale) {
  scale_ = scale.detach().reshape({}).to(at::kDouble, false, true);
}

void ErrorFeedback::recall(Memory& memory) const {
  const bool written = memory.written_in >= 0 && memory.written_in == completed_;
  for (Kept* kept : {&memory.residual, &memory.q}) {
    if (!kept->now.defined()) continue;
    if (written) at::where_out(kept->now, applied_, kept->next, kept->now);
    if (!kept->next.defined()) kept->next = at::empty_like(kept->now);
  }
  if (scale_.defined() && memory.residual.now.defined()) {
    memory.residual.now.mul_(memory.scale.defined() ? scale_ / memory.scale : scale_);
    memory.scale = scale_;
  }
  memory.written_in = window_->number;
}

std::shared_ptr<ErrorFeedback::Memory> ErrorFeedback::memory_of(const at::Tensor& parameter) {
  auto& memory = by_parameter_[parameter.unsafeGetTensorImpl()];
  if (memory == nullptr) {
    memory = std::make_shared<Memory>(fresh(parameter));
    memories_.push_back(memory);
  }
  return memory;
}

void ErrorFeedback::name_parameters(const std::vector<std::pair<std::string, at::Tensor>>& named) { named_ = named; }

std::vector<std::pair<std::string, std::shared_ptr<ErrorFeedback::Memory>>> ErrorFeedback::named_memories() const {
  std::unordered_map<const c10::TensorImpl*, std::string> names;
  for (const auto& [name, parameter] : named_) names.emplace(parameter.unsafeGetTensorImpl(), name);
  std::vector<std::pair<std::string, std::shared_ptr<Memory>>> result;
  for (std::size_t i = 0; i < memories_.size(); ++i) {
    const auto name = names.find(memories_[i]->parameter.unsafeGetTensorImpl());
    result.emplace_back(name != names.end() ? name->second : c10::str("parameter.", i), memories_[i]);
  }
  return result;
}

HookState ErrorFeedback::state() const {
  const at::NoGradGuard no_grad;
  HookState state = CommHook::state();
  state.windows = windows_;
  const auto [completed, applied] = last_applied();
  for (const auto& [name, memory] : named_memories()) {
    const bool written = memory->written_in >= 0 && memory->written_in == completed;
    const auto valid = [&, &of = applied](const Kept& kept) {
      return written ? at::where(of, kept.next, kept.now) : kept.now.clone();
    };
    auto& tensors = state.parameters[name];
    if (memory->residual.now.defined()) {
      at::Tensor residual = valid(memory->residual);
      if (memory->scale.defined()) residual.div_(memory->scale);
      tensors["residual"] = in_shape_of(memory->parameter, residual);
    }
    if (memory->q.now.defined()) tensors["q"] = valid(memory->q);
  }
  return state;
}

std::shared_ptr<ErrorFeedback::Memory> ErrorFeedback::loaded(const std::string& name,
                                                             const std::map<std::string, at::Tensor>& tensors) const {
  const auto known = std::find_if(named_.begin(), named_.end(), [&](const auto& item) { return item.first == name; });
  if (known == named_.end()) {
    throw StateError(c10::str(this->name(), ": the state has parameter ", name, ", which ",
                              named_.empty() ? "nobody has named: call name_parameters first" : "the model has not"));
  }
  const at::Tensor& parameter = known->second;
  if (!compresses(parameter)) {
    throw StateError(c10::str(this->name(), ": the state has something of parameter ", name, " ", parameter.sizes(),
                              ", which is not compressed with these options"));
  }
  auto memory = std::make_shared<Memory>(fresh(parameter));
  std::map<std::string, at::Tensor> ours;
  if (memory->residual.now.defined()) ours["residual"] = in_shape_of(parameter, memory->residual.now);
  if (memory->q.now.defined()) ours["q"] = memory->q.now;
  const auto describe = [](const std::map<std::string, at::Tensor>& of) {
    std::string text;
    for (const auto& [what, tensor] : of) text += c10::str(" ", what, " ", tensor.sizes(), " ", tensor.scalar_type());
    return text.empty() ? " nothing" : text;
  };
  if (describe(ours) != describe(tensors)) {
    throw StateError(c10::str(this->name(), ": of parameter ", name, " the state has", describe(tensors), ", wanted is",
                              describe(ours), ": make the hook with the options that the state was saved with"));
  }
  for (auto& [what, tensor] : ours) tensor.copy_(tensors.at(what));
  return memory;
}

void ErrorFeedback::load_state(const HookState& state) {
  const at::NoGradGuard no_grad;
  CommHook::load_state(state);
  if (state.ranks != group().world_size()) {
    throw StateError(c10::str(name(), ": the state is of ", state.ranks, " ranks, the group has ", group().world_size(),
                              ": residuals belong to ranks; go on without this state"));
  }
  std::vector<std::shared_ptr<Memory>> memories;
  for (const auto& [name, tensors] : state.parameters) memories.push_back(loaded(name, tensors));
  wait();
  window_.reset();
  completed_ = -1;
  windows_ = state.windows;
  memories_ = std::move(memories);
  by_parameter_.clear();
  for (const auto& memory : memories_) by_parameter_[memory->parameter.unsafeGetTensorImpl()] = memory;
}

}  // namespace saturate::distributed
