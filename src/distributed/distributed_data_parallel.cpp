// SPDX-License-Identifier: Apache-2.0
#include "saturate/distributed/distributed_data_parallel.hpp"

#include "../torch_seam/reducer.hpp"
#include "same_model.hpp"
#include "saturate/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <c10/util/StringUtil.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <exception>
#include <unordered_set>
#include <utility>

namespace saturate::distributed {
namespace {

/// Each parameter that is trained, once, by the first of its names.
struct Trained {
  std::vector<at::Tensor> tensors;
  std::vector<std::string> names;
};

Trained trained_parameters(const torch::nn::Module& module) {
  Trained trained;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& item : module.named_parameters()) {
    if (!item.value().requires_grad() || !seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
    trained.tensors.push_back(item.value());
    trained.names.push_back(item.key());
  }
  return trained;
}

}  // namespace

void DdpOptions::validate() const {
  const auto require = [](bool holds, const std::string& what) {
    if (!holds) throw ConfigError("DdpOptions: " + what);
  };
  require(bucket_bytes > 0, c10::str("bucket_bytes is ", bucket_bytes, "; give a positive number"));
  require(first_bucket_bytes > 0, c10::str("first_bucket_bytes is ", first_bucket_bytes, "; give a positive number"));
  require(!(find_unused_parameters && static_graph),
          "find_unused_parameters and static_graph: a static graph finds them by itself, in its first window");
}

struct DistributedDataParallel::Impl {
  torch::nn::Module* module;
  ProcessGroup group;
  DdpOptions options;
  double divisor;
  std::unique_ptr<torch_seam::Reducer> reducer;
  int64_t reductions = 0, reductions_before = 0;  // so far, and when the micro-batch began
  bool synced = false;                            // the window's last micro-batch has begun
  bool given_up = false;                          // an exception has left a micro-batch

  void make_reducer() {
    Trained trained = trained_parameters(*module);
    reducer = std::make_unique<torch_seam::Reducer>(
        std::move(trained.tensors), std::move(trained.names), group.c10d(),
        torch_seam::ReducerOptions{options.bucket_bytes, options.first_bucket_bytes, options.find_unused_parameters,
                                   options.static_graph, options.gradient_as_bucket_view},
        [this](Bucket& bucket) {
          ++reductions;
          return options.hook->reduce(bucket, divisor);
        });
  }

  void begin(bool last) {
    if (group.world_size() == 1) return;
    if (std::exchange(given_up, false) && reducer != nullptr) {
      reducer->reset();
      if (reductions > reductions_before) {
        options.hook->refuse(at::ones({}, at::TensorOptions(group.device()).dtype(at::kFloat)));
      }
    }
    reductions_before = reductions;
    synced = last;
    if (!last) return;
    if (reducer == nullptr) make_reducer();
    group.run("agreeing on buckets", [&] { reducer->before_forward(); });
    if (options.buffers == Buffers::broadcast) detail::broadcast_from_first(module->buffers(), group);
  }
};

DistributedDataParallel::DistributedDataParallel(torch::nn::Module& module, ProcessGroup group, DdpOptions options,
                                                 Reduction reduction)
    : impl_(std::make_unique<Impl>()) {
  options.validate();
  if (options.hook == nullptr) options.hook = std::make_shared<AllReduce>();
  impl_->module = &module;
  impl_->group = std::move(group);
  impl_->options = std::move(options);
  impl_->divisor = reduction == Reduction::mean ? impl_->group.world_size() : 1;
  if (trained_parameters(module).tensors.empty()) {
    throw ConfigError("DistributedDataParallel: no parameter of the model requires a gradient");
  }
  if (impl_->group.world_size() == 1) return;
  detail::require_same_model(module, impl_->group, "DistributedDataParallel");
  detail::broadcast_model(module, impl_->group);
  impl_->options.hook->attach(impl_->group);
  const Trained trained = trained_parameters(module);
  std::vector<std::pair<std::string, at::Tensor>> named;
  for (std::size_t i = 0; i < trained.names.size(); ++i) named.emplace_back(trained.names[i], trained.tensors[i]);
  impl_->options.hook->name_parameters(named);
  // A static graph counts each parameter's gradients in the backward passes that it sees first: it is to see one.
  if (!impl_->options.static_graph) impl_->make_reducer();
}

DistributedDataParallel::~DistributedDataParallel() = default;
DistributedDataParallel::DistributedDataParallel(DistributedDataParallel&&) noexcept = default;
DistributedDataParallel& DistributedDataParallel::operator=(DistributedDataParallel&&) noexcept = default;

DistributedDataParallel::MicroStep::MicroStep(DistributedDataParallel* ddp, bool last)
    : ddp_(ddp), exceptions_(std::uncaught_exceptions()) {
  ddp->impl_->begin(last);
}

DistributedDataParallel::MicroStep::~MicroStep() {
  // Before the last micro-batch the reducer has not begun: the other ranks' would wait for this one to begin it again.
  if (std::uncaught_exceptions() > exceptions_ && ddp_->impl_->synced) ddp_->impl_->given_up = true;
}

void DistributedDataParallel::before_backward(const at::Tensor& loss) {
  if (!impl_->synced) return;
  impl_->options.hook->before_backward();
  impl_->reducer->before_backward(loss);
}

at::Tensor DistributedDataParallel::zero_loss() const {
  const at::AutoGradMode grad_mode(true);
  at::Tensor loss;
  for (const at::Tensor& parameter : trained_parameters(*impl_->module).tensors) {
    const at::Tensor zero = parameter.flatten().narrow(0, 0, std::min<int64_t>(parameter.numel(), 1)).sum() * 0;
    loss = loss.defined() ? loss + zero.to(loss.options()) : zero;
  }
  return loss;
}

void DistributedDataParallel::finish() {
  if (!std::exchange(impl_->synced, false)) return;
  try {
    impl_->reducer->after_backward();
  } catch (...) {
    impl_->given_up = true;
    throw;
  }
}

void DistributedDataParallel::finish_for_others(const std::function<void()>& before_reductions) {
  if (impl_->group.world_size() == 1) return;
  impl_->given_up = false;  // buckets stay those that the others have
  if (!impl_->synced) impl_->begin(/*last=*/true);
  if (before_reductions) before_reductions();
  impl_->group.run("reductions of other ranks, after running out of memory",
                   [&] { impl_->reducer->reduce_rest(impl_->reductions - impl_->reductions_before); });
}

void DistributedDataParallel::abandon_window() {
  if (impl_->group.world_size() == 1) return;
  impl_->synced = impl_->given_up = false;
  if (impl_->reducer != nullptr) impl_->reducer->reset();
  impl_->reducer.reset();  // made again, alike on all ranks: nothing else is after half a backward on one of them
  if (impl_->reductions == impl_->reductions_before) return;
  impl_->options.hook->refuse(at::ones({}, at::TensorOptions(impl_->group.device()).dtype(at::kFloat)));
}

const ProcessGroup& DistributedDataParallel::group() const { return impl_->group; }
CommHook& DistributedDataParallel::hook() { return *impl_->options.hook; }
int64_t DistributedDataParallel::reductions() const { return impl_->reductions; }

std::vector<int64_t> DistributedDataParallel::bucket_bytes() const {
  return impl_->reducer == nullptr ? std::vector<int64_t>() : impl_->reducer->bucket_bytes();
}

}  // namespace saturate::distributed
