// SPDX-License-Identifier: Apache-2.0
#include "reducer.hpp"

#include "saturate/distributed/waiting.hpp"
#include "saturate/error.hpp"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <algorithm>
#include <limits>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <utility>

namespace saturate::torch_seam {
namespace {

/// Buckets of a window; weak, for they hold gradients.
using Futures = std::vector<c10::weak_intrusive_ptr<c10::ivalue::Future>>;

/// When this rank's own backward was over, and it began to wait for buckets.
using WaitsSince = std::optional<distributed::Waiting::Clock::time_point>;

class HookOf final : public c10d::CommHookInterface {
 public:
  HookOf(Reducer::Hook hook, std::shared_ptr<Futures> on_their_way, std::shared_ptr<WaitsSince> waits_since)
      : hook_(std::move(hook)), on_their_way_(std::move(on_their_way)), waits_since_(std::move(waits_since)) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& given) override {
    distributed::Bucket bucket{.gradients = given.getBuffer(),
                               .index = given.getIndex(),
                               .last = given.isLast(),
                               .parameters = given.getParameters(),
                               .views = {}};
    // Not getGradients(), which sees every parameter as if it were contiguous.
    int64_t offset = 0;
    for (const at::Tensor& parameter : bucket.parameters) {
      bucket.views.push_back(
          distributed::in_shape_of(parameter, bucket.gradients.narrow(0, offset, parameter.numel())));
      offset += parameter.numel();
    }
    // The Reducer's own callback, which waits, comes after this one.
    if (bucket.index == 0 && torch::autograd::get_current_graph_task_id() != -1) {
      torch::autograd::Engine::get_default_engine().queue_callback(
          [since = waits_since_] { *since = distributed::Waiting::Clock::now(); });
    }
    auto future = hook_(bucket);
    if (bucket.index == 0) on_their_way_->clear();
    on_their_way_->emplace_back(future);
    return future;
  }
  at::Tensor parseHookResult(const c10::IValue& result) override {
    return c10d::detail::parseCppCommHookResult(result);
  }

 private:
  Reducer::Hook hook_;
  std::shared_ptr<Futures> on_their_way_;
  std::shared_ptr<WaitsSince> waits_since_;
};

/// The names behind "Parameter indices which did not receive grad for rank 0: 0 1 6".
std::string named_in(const std::string& message, const std::vector<std::string>& names) {
  const std::string before = "did not receive grad for rank";
  const auto found = message.find(before);
  const auto colon = found == std::string::npos ? found : message.find(':', found);
  if (colon == std::string::npos) return "a parameter";
  std::istringstream numbers(message.substr(colon + 1));
  std::string text;
  for (std::size_t number; numbers >> number && number < names.size();) {
    text += (text.empty() ? "" : ", ") + names[number];
  }
  return text.empty() ? "a parameter" : text;
}

}  // namespace

struct Reducer::Impl {
  std::shared_ptr<c10d::Reducer> reducer;
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  std::vector<std::string> names;
  bool find_unused, static_graph;
  bool first_window = true;
  std::shared_ptr<Futures> on_their_way = std::make_shared<Futures>();
  std::shared_ptr<WaitsSince> waits_since = std::make_shared<WaitsSince>();
};

Reducer::Reducer(std::vector<at::Tensor> parameters, std::vector<std::string> names,
                 c10::intrusive_ptr<c10d::ProcessGroup> group, const ReducerOptions& options, Hook hook)
    : impl_(std::make_unique<Impl>()) {
  impl_->find_unused = options.find_unused_parameters;
  impl_->static_graph = options.static_graph;
  // Buckets are made again after the first window, in the order in which gradients come: until then one is enough,
  // unless they never are.
  std::vector<std::size_t> limits{std::numeric_limits<std::size_t>::max()};
  if (options.find_unused_parameters) {
    limits = {static_cast<std::size_t>(options.first_bucket_bytes), static_cast<std::size_t>(options.bucket_bytes)};
  }
  impl_->group = group;
  const std::vector<bool> sparse(parameters.size(), false);
  auto [buckets, bucket_limits] = c10d::compute_bucket_assignment_by_size(parameters, limits, sparse);
  std::reverse(buckets.begin(), buckets.end());  // about the order of backward
  std::unordered_map<std::size_t, std::string> by_index;
  for (std::size_t i = 0; i < names.size(); ++i) by_index.emplace(i, names[i]);
  impl_->names = std::move(names);
  impl_->reducer = std::make_shared<c10d::Reducer>(
      std::move(parameters), std::move(buckets), std::move(group), sparse, options.bucket_bytes,
      options.find_unused_parameters, options.gradient_as_bucket_view, std::move(by_index), options.first_bucket_bytes,
      /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false, std::vector<int64_t>());
  impl_->reducer->register_comm_hook(
      std::make_unique<HookOf>(std::move(hook), impl_->on_their_way, impl_->waits_since));
  if (options.static_graph) impl_->reducer->set_static_graph();
}

Reducer::~Reducer() {
  if (impl_ != nullptr) impl_->reducer->remove_autograd_hooks();
}

void Reducer::before_forward() {
  impl_->reducer->rebuild_buckets();
  impl_->reducer->prepare_for_forward();
  if (!impl_->find_unused) impl_->reducer->prepare_for_backward({});
}

void Reducer::before_backward(const at::Tensor& loss) {
  if (impl_->find_unused) impl_->reducer->prepare_for_backward({loss});
}

void Reducer::after_backward() {
  if (const WaitsSince since = std::exchange(*impl_->waits_since, std::nullopt)) {
    const distributed::Waiting waited(*since);
  }
  if (std::exchange(impl_->first_window, false) && impl_->static_graph) impl_->reducer->delay_all_reduce();
  try {
    impl_->reducer->check_finalized();
  } catch (const c10::Error& error) {
    throw StateError("DistributedDataParallel: no gradient in this window's last backward: " +
                     named_in(error.what_without_backtrace(), impl_->names) +
                     "; so the others' were not all reduced. Freeze what is not used, or set find_unused_parameters");
  }
}

// As Python's Join does for a rank that has no more data.
void Reducer::reduce_rest(int64_t begun) {
  if (impl_->first_window && impl_->static_graph) return;  // the others reduce after backward
  const at::NoGradGuard no_grad;
  auto buckets = impl_->reducer->get_grad_buckets(/*return_zero_tensors=*/false);  // new ones might find no memory
  const auto first = static_cast<std::size_t>(begun);
  for (std::size_t i = first; i < buckets.size(); ++i) {
    buckets[i].getBufferRef().zero_();
    impl_->reducer->run_comm_hook(buckets[i]);
  }
  if (impl_->find_unused && first < buckets.size()) {  // which parameters were used goes round with the last bucket
    std::vector<at::Tensor> used{impl_->reducer->get_local_used_map_on_device()};
    impl_->group->allreduce(used);
  }
}

void Reducer::reset() {
  for (const auto& weak : *impl_->on_their_way) {
    const auto future = weak.lock();
    if (future != nullptr && !future->completed()) future->wait();  // it still writes to its bucket
  }
  impl_->on_their_way->clear();
  impl_->reducer->reset_state();
}

std::vector<int64_t> Reducer::bucket_bytes() const {
  std::vector<int64_t> bytes;
  for (const auto& bucket : impl_->reducer->get_grad_buckets()) {
    bytes.push_back(static_cast<int64_t>(bucket.getBuffer().nbytes()));
  }
  return bytes;
}

}  // namespace saturate::torch_seam
