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
#include <optional>
#include <typeinfo>
#include <utility>

namespace saturate {
namespace {

/// Whether an exception comes from communication: c10d's own types, or Gloo's, whose headers are not there.
bool is_of_communication(const std::exception& error) {
  return dynamic_cast<const c10::DistError*>(&error) != nullptr ||
         std::string(typeid(error).name()).find("gloo") != std::string::npos;
}

/// Where a rank is, as it tells the others. Above 0: before a window of so many batches.
constexpr int64_t within_fit = 0, out_of_data = -1, before_an_evaluation = -2, before_fit = -3;

std::string place_text(int64_t place) {
  switch (place) {
    case within_fit: return "in the middle of fit";
    case out_of_data: return "at the end of the data";
    case before_an_evaluation: return "before an evaluation";
    case before_fit: return "before fit";
    default: return place == 1 ? "before a window" : c10::str("before a window of ", place, " batches");
  }
}

}  // namespace

/// The window's loss on its way: known before the last backward, wanted after it.
struct Ddp::PendingLoss {
  at::Tensor sum;
  bool last = false;
  at::ScalarType dtype = at::kFloat;
  c10::intrusive_ptr<c10d::Work> work;
};

/// What ranks ask each other on their CPUs, beside everything else.
struct Ddp::Hosts {
  /// Place, -place, yes: their highest over all ranks, which is the same for any question.
  struct Question {
    at::Tensor words;
    c10::intrusive_ptr<c10d::Work> work;
  };

  explicit Hosts(const distributed::ProcessGroup& group) : group(group.beside("stop")) {}

  Question ask(int64_t place, bool yes) const {
    Question question{at::zeros({3}, at::kLong), {}};
    auto* words = question.words.mutable_data_ptr<int64_t>();
    words[0] = place;
    words[1] = -place;
    words[2] = yes ? 1 : 0;
    std::vector<at::Tensor> tensors{question.words};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::MAX;
    options.timeout = group.timeout();
    question.work = group.c10d()->allreduce(tensors, options);
    return question;
  }

  /// Whether any rank says yes. @throws ConfigError, on every rank: they are at different places.
  bool answer(const Question& question, int64_t place) const {
    group.run("all_reduce " + place_text(place), [&] { question.work->wait(); });
    const auto* words = question.words.const_data_ptr<int64_t>();
    if (words[0] == -words[1]) return words[2] != 0;
    throw ConfigError(c10::str("Ddp: some ranks are ", place_text(words[0]), ", others ", place_text(-words[1]),
                               " (this is rank ", group.rank(), ", ", place_text(place),
                               "), and would wait for each other for ever. Ranks fit, train windows and evaluate "
                               "together, equally often: shard the data equally, or, without SyncBatchNorm, let ranks "
                               "join: UnevenInputs::join"));
  }

  bool together(int64_t place, bool yes = false) const { return answer(ask(place, yes), place); }

  /// What has been asked last about stopping, if anything.
  bool settle() {
    if (!stop) return false;
    const Question asked = std::move(*std::exchange(stop, std::nullopt));
    return answer(asked, within_fit);
  }

  distributed::ProcessGroup group;
  std::optional<Question> stop;  // under way
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
  hosts_ = std::make_shared<Hosts>(group_);
  module_ = &module;
}

std::optional<distributed::DistributedDataParallel::MicroStep> Ddp::micro_step(bool last) {
  if (alone()) return std::nullopt;
  loss_->last = last;
  return std::optional<distributed::DistributedDataParallel::MicroStep>(std::in_place, ddp_.get(), last);
}

Ddp::ByItself::ByItself(Ddp& ddp) : loss_(ddp.loss_), before_(std::exchange(loss_->sum, at::Tensor())) {
  if (!ddp.alone()) micro_step_.emplace(ddp.ddp_.get(), /*last=*/false);
  loss_->last = false;
  if (!ddp.forwards_together_) return;
  apart_ = ddp.module_;
  distributed::normalize_alone(*apart_, true);
}

Ddp::ByItself::~ByItself() {
  if (apart_ != nullptr) distributed::normalize_alone(*apart_, false);
  loss_->sum = before_;
}

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
  if (!hosts_->group.any(here)) return false;  // between the CPUs: no GPU is waited for
  group_.run("all_reduce of the loss", [&] { loss_->work->wait(); });
  loss_->work = nullptr;
  loss_->sum = at::Tensor();
  ddp_->abandon_window();
  return true;
}

void Ddp::require_even(std::optional<int64_t> windows, std::optional<int64_t> batches) {
  if (alone()) return;
  hosts_->settle();  // of an earlier fit
  hosts_->together(before_fit);
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

bool Ddp::any_has_data(int64_t batches) const {
  if (alone()) return batches > 0;
  if (uneven_ == UnevenInputs::join) return group_.any(batches > 0);
  if (looks_at_windows_) hosts_->together(place_of(batches));
  return batches > 0;
}

int64_t Ddp::place_of(int64_t batches) const {
  if (batches < 1) return out_of_data;
  return forwards_together_ ? batches : 1;
}

void Ddp::before_step(int64_t batches) const {
  if (!alone()) hosts_->together(place_of(batches));
}

void Ddp::before_evaluation() const {
  if (!alone()) hosts_->together(before_an_evaluation);
}

void Ddp::join_window() {
  const auto step = micro_step(/*last=*/true);
  const at::Tensor loss = ddp_->zero_loss();
  before_backward(loss);
  loss.backward({});
}

bool Ddp::any_stops(bool here) {
  if (alone()) return here;
  const bool stops = hosts_->settle();
  hosts_->stop = hosts_->ask(within_fit, here);
  return stops;
}

bool Ddp::agree_to_stop(bool here) {
  if (alone()) return here;
  const bool stops = hosts_->settle();
  return hosts_->together(within_fit, here) || stops;
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
