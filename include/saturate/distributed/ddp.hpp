// SPDX-License-Identifier: Apache-2.0
// The distributed axis: Ddp, data parallel training.
//
//   auto group = st::distributed::ProcessGroup::from_environment();
//   st::Trainer trainer(net, optimizer, loss, st::Ddp(group), st::Accumulate{4});
#pragma once

#include "saturate/distributed/distributed_data_parallel.hpp"
#include "saturate/distributed/process_group.hpp"
#include "saturate/optim/optimizer.hpp"
#include "saturate/policy.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace saturate {

using distributed::DdpOptions;

/// What Ddp does when ranks have different numbers of windows in an epoch.
enum class UnevenInputs {
  /// A ConfigError on every rank: when fit begins, or, where no loader knows its length and in windows by hand
  /// (Trainer::step), at the window that one has and another has not (which ranks then tell each other before each).
  refuse,
  join,  ///< a rank that has no more data joins the others' steps with nothing, until all are done
};

/// Every rank trains on its own batches with the same weights. Gradients are summed over ranks in buckets while the
/// window's last backward runs; the window's targets are counted over all ranks, so that the gradient is that of all
/// their samples in one batch, whatever each rank has. Losses are those of all ranks. Every rank skips a step or none.
/// With one process nothing is done.
class Ddp {
 public:
  using axis = saturate::axis::distributed;

  explicit Ddp(distributed::ProcessGroup group, DdpOptions options = {}, UnevenInputs uneven = UnevenInputs::refuse);

  void validate() const { options_.validate(); }
  void attach(torch::nn::Module& module, c10::Device device);
  /// Where the group's ranks train: the Trainer's device, unless TrainerOptions names one.
  std::optional<c10::Device> device() const { return group_.device(); }

  std::optional<distributed::DistributedDataParallel::MicroStep> micro_step(bool last);
  /// While it lives, forward and backward are this rank's own: a probe, a window run again. Nothing is reduced, and no
  /// loss of it is left for the next window.
  class ByItself;
  ByItself by_itself();
  void before_backward(const at::Tensor& loss_sum);
  void finish();
  /// Until finish() gradients are this rank's, and the parameters' own: an optimizer may take them over only then.
  bool reduces_at_finish() const { return !alone(); }
  void agree(at::Tensor& refused);
  /// Before a window: its losses are multiplied by this (GradScaler's scale).
  void scaled_by(const at::Tensor& scale);
  /// After the update. @param refused what agree() came to; undefined: nothing could refuse the step.
  void after_step(const at::Tensor& refused, optim::Optimizer* = nullptr);
  void reduce_count(double& host, at::Tensor& device);
  /// The window's loss over all ranks, in place of this rank's.
  void reduce_loss(at::Tensor& loss_sum);
  /// A sum over ranks, at the end of an evaluation.
  void reduce_sum(at::Tensor& sum);
  /// After an attempt at a window's forward and backward, on every rank. Where this rank ran out of memory, in whatever
  /// micro-batch, it takes part in the others' reductions with nothing, so that they get here. True: the window begins
  /// again on every rank.
  bool any_out_of_memory(bool here);
  /// @throws ConfigError, on every rank: their numbers of windows (with SyncBatchNorm: of batches) in an epoch differ,
  /// and they do not join.
  void require_even(std::optional<int64_t> windows, std::optional<int64_t> batches);
  /// @param batches that this rank has for one more window. @return whether any rank has data for it.
  /// @throws ConfigError, on every rank, where no loader knows its length: one has a window and another has not (with
  /// SyncBatchNorm: one of as many batches), and they do not join.
  bool any_has_data(int64_t batches) const;
  /// Before a window by hand, of so many batches on this rank, and before an evaluation by hand: a small all-reduce
  /// between the CPUs. @throws ConfigError, on every rank: another one does something else.
  void before_step(int64_t batches) const;
  void before_evaluation() const;
  /// A window of which this rank has nothing, up to finish().
  void join_window();
  /// Whether any rank wants to stop: known on all of them one window later, without waiting.
  bool any_stops(bool here);
  /// The same at once, at an epoch's end.
  bool agree_to_stop(bool here);
  /// Runs a window; errors of c10d become a DistributedError.
  void run(const std::function<void()>& window) const;

  const distributed::ProcessGroup& group() const { return group_; }
  distributed::DistributedDataParallel& ddp() { return *ddp_; }

 private:
  bool alone() const { return group_.world_size() == 1; }
  void send_loss(const at::Tensor& local);
  int64_t place_of(int64_t batches) const;
  struct PendingLoss;
  struct Hosts;

  distributed::ProcessGroup group_;
  DdpOptions options_;
  UnevenInputs uneven_;
  bool forwards_together_ = false;  // ranks meet in each forward pass, not only in each window
  bool looks_at_windows_ = false;   // no loader knows its length
  std::shared_ptr<distributed::DistributedDataParallel> ddp_;  // none with one process
  std::shared_ptr<PendingLoss> loss_;
  std::shared_ptr<Hosts> hosts_;
  torch::nn::Module* module_ = nullptr;
};
static_assert(DistributedPolicy<Ddp>);

class Ddp::ByItself {
 public:
  explicit ByItself(Ddp& ddp);
  ~ByItself();
  ByItself(const ByItself&) = delete;
  ByItself& operator=(const ByItself&) = delete;

 private:
  std::shared_ptr<PendingLoss> loss_;
  at::Tensor before_;
  std::optional<distributed::DistributedDataParallel::MicroStep> micro_step_;
  torch::nn::Module* apart_ = nullptr;  // whose SyncBatchNorm is this rank's alone meanwhile
};

}  // namespace saturate
