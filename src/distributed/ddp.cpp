// SPDX-License-Identifier: Apache-2.0
#include "saturate/distributed/ddp.hpp"

#include "saturate/distributed/sync_batch_norm.hpp"
#include "saturate/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <exception>
#include <typeinfo>
#include <utility>

namespace saturate {
namespace {

/// Whether an exception comes from communication: c10d's own types, or Gloo's, whose headers are not there.
bool is_of_communication(const std::exception& error) {
  return dynamic_cast<const c10::DistError*>(&error) != nullptr ||
         std::string(typeid(error).name()).find("gloo") != std::string::npos;
}

}  // namespace

/// The window's loss on its way: known before the last backward, wanted after it.
struct Ddp::PendingLoss {
  at::Tensor sum;
  bool last = false;
  at::ScalarType dtype = at::kFloat;
  c10::intrusive_ptr<c10d::Work> work;
};

/// Goes round on the CPU, beside everything else.
struct Ddp::PendingStop {
  explicit PendingStop(const distributed::ProcessGroup& group) : group(group.beside("stop")) {}

  /// What has been asked last, if anything.
  bool settle() {
    if (work == nullptr) return false;
    group.run("agreeing to stop", [&] { std::exchange(work, nullptr)->wait(); });
    return flag.item<int>() != 0;
  }

  distributed::ProcessGroup group;
  at::Tensor flag;
  c10::intrusive_ptr<c10d::Work> work;
};

Ddp::Ddp(distributed::ProcessGroup group, DdpOptions options, UnevenInputs uneven)
    : group_(std::move(group)), options_(std::move(options)), uneven_(uneven), loss_(std::make_shared<PendingLoss>()) {}

void Ddp::attach(torch::nn::Module& module, c10::Device device) {
  if (alone()) return;
  if (device.type() != group_.device().type()) {
    throw ConfigError("Ddp: the model is on " + device.str() + ", the process group is for " + group_.device().str());
  }
  forwards_together_ = distributed::has_sync_batch_norm(module);
  if (uneven_ == UnevenInputs::join && forwards_together_) {
    throw ConfigError(
        "Ddp: UnevenInputs::join and SyncBatchNorm: a rank without data makes no forward pass, and the others "
        "would wait for it. Shard the data equally (LoaderOptions: ranks, and Uneven::pad or drop)");
  }
  ddp_ = std::make_shared<distributed::DistributedDataParallel>(module, group_, options_, distributed::Reduction::sum);
  stop_ = std::make_shared<PendingStop>(group_);
}

std::optional<distributed::DistributedDataParallel::MicroStep> Ddp::micro_step(bool last) {
  if (alone()) return std::nullopt;
  loss_->last = last;
  return std::optional<distributed::DistributedDataParallel::MicroStep>(std::in_place, ddp_.get(), last);
}

Ddp::ByItself::ByItself(Ddp& ddp) : loss_(ddp.loss_), before_(std::exchange(loss_->sum, at::Tensor())) {
  if (!ddp.alone()) micro_step_.emplace(ddp.ddp_.get(), /*last=*/false);
  loss_->last = false;
}

Ddp::ByItself::~ByItself() { loss_->sum = before_; }

Ddp::ByItself Ddp::by_itself() { return ByItself(*this); }

void Ddp::before_backward(const at::Tensor& loss_sum) {
  if (alone()) return;
  send_loss(loss_sum.detach());
  ddp_->before_backward(loss_sum);
}

// Always as float64, which all ranks know without having seen a loss.
void Ddp::send_loss(const at::Tensor& local) {
  loss_->sum = loss_->sum.defined() ? loss_->sum + local : local.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
  if (!loss_->last) return;
  loss_->dtype = local.scalar_type();
  std::vector<at::Tensor> tensors{loss_->sum};
  c10d::AllreduceOptions options;
  options.timeout = group_.timeout();
  loss_->work = group_.c10d()->allreduce(tensors, options);
}

void Ddp::finish() {
  if (!alone()) ddp_->finish();
}

void Ddp::agree(at::Tensor& refused) {
  if (alone() || !refused.defined()) return;
  refused = refused.clone();
  group_.all_reduce(refused, distributed::ReduceOp::max);
}

void Ddp::scaled_by(const at::Tensor& scale) {
  if (!alone() && scale.defined()) ddp_->hook().scaled_by(scale);
}

void Ddp::after_step(const at::Tensor& refused, optim::Optimizer*) {
  if (!alone() && refused.defined()) ddp_->hook().refuse(refused);
}

void Ddp::reduce_count(double& host, at::Tensor& device) {
  if (alone()) return;
  // A host number where the group reduces on the CPU, whatever this rank has counted (one without data: nothing, on the
  // host), so that all ranks have the same reasons to refuse a step. A GPU is not waited for.
  const bool on_host = group_.device().is_cpu();
  device = device.defined() ? device.to(at::kDouble)
                            : at::full({}, host, at::TensorOptions(group_.device()).dtype(at::kDouble));
  group_.all_reduce(device);
  if (!on_host) return;
  host = device.item<double>();
  device = at::Tensor();
}

void Ddp::reduce_loss(at::Tensor& loss_sum) {
  if (alone() || loss_->work == nullptr) return;
  group_.run("all_reduce of the loss", [&] { loss_->work->wait(); });
  loss_sum = std::exchange(loss_->sum, at::Tensor()).to(loss_->dtype);
  loss_->work = nullptr;
}

void Ddp::reduce_sum(at::Tensor& sum) {
  if (alone()) return;
  sum = sum.clone();
  group_.all_reduce(sum);
}

bool Ddp::any_out_of_memory(bool here) {
  if (alone()) return here;
  if (here) {
    ddp_->finish_for_others([&] {
      if (loss_->work != nullptr) return;
      loss_->last = true;
      send_loss(at::zeros({}, at::TensorOptions(group_.device()).dtype(at::kDouble)));
    });
  }
  if (!stop_->group.any(here)) return false;  // between the CPUs: no GPU is waited for
  group_.run("all_reduce of the loss", [&] { loss_->work->wait(); });
  loss_->work = nullptr;
  loss_->sum = at::Tensor();
  ddp_->abandon_window();
  return true;
}

void Ddp::require_even(std::optional<int64_t> windows, std::optional<int64_t> batches) {
  if (alone()) return;
  stop_->settle();  // of an earlier fit
  if (uneven_ == UnevenInputs::join) return;
  const std::optional<int64_t> count = forwards_together_ ? batches : windows;
  looks_at_windows_ = !count;
  const auto texts = group_.gather_text(count ? std::to_string(*count) : "an unknown number of");
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    throw ConfigError("Ddp: rank " + std::to_string(rank) + " has " + texts[rank] +
                      (forwards_together_ ? " batches" : " windows") + " an epoch, rank 0 has " + texts[0] +
                      ": the others would wait for it for ever. Shard the data equally (LoaderOptions: "
                      "ranks, and Uneven::pad or drop)" +
                      (forwards_together_ ? "" : ", or let ranks join: UnevenInputs::join"));
  }
}

bool Ddp::any_has_data(bool here) const {
  if (alone()) return here;
  if (uneven_ == UnevenInputs::join) return group_.any(here);
  return looks_at_windows_ ? every_has_data(here) : here;
}

bool Ddp::every_has_data(bool here) const {
  const at::Tensor flags = at::zeros({2}, at::kInt);  // some rank has data, some rank has none
  flags[here ? 0 : 1].fill_(1);
  stop_->group.all_reduce(flags, distributed::ReduceOp::max);
  const bool some = flags[0].item<int>() != 0;
  if (some && flags[1].item<int>() != 0) {
    throw ConfigError(c10::str("Ddp: this epoch is over for some ranks and not for others (rank ", group_.rank(),
                               here ? " has" : " has not", " another window): the others would wait for ever. Shard ",
                               "the data equally, or let ranks join: UnevenInputs::join"));
  }
  return some;
}

void Ddp::join_window() {
  const auto step = micro_step(/*last=*/true);
  const at::Tensor loss = ddp_->zero_loss();
  before_backward(loss);
  loss.backward({});
}

bool Ddp::any_stops(bool here) {
  if (alone()) return here;
  const bool stops = stop_->settle();
  stop_->flag = at::full({}, here ? 1 : 0, at::kInt);
  std::vector<at::Tensor> tensors{stop_->flag};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MAX;
  options.timeout = group_.timeout();
  stop_->work = stop_->group.c10d()->allreduce(tensors, options);
  return stops;
}

bool Ddp::agree_to_stop(bool here) {
  if (alone()) return here;
  const bool stops = stop_->settle();
  return stop_->group.any(here) || stops;
}

void Ddp::run(const std::function<void()>& window) const {
  if (alone()) return window();
  try {
    window();
  } catch (const std::exception& error) {
    if (!is_of_communication(error)) throw;
    group_.run("forward and backward of a window", [&] { throw; });
  }
}

}  // namespace saturate
