// SPDX-License-Identifier: Apache-2.0
// The distributed axis: SyncEvery, local SGD. Ranks train alone, and their weights are averaged now and then.
//
//   st::Trainer trainer(net, optimizer, loss, st::SyncEvery(group, {.windows = 8}));
#pragma once

#include "saturate/distributed/ddp.hpp"
#include "saturate/distributed/process_group.hpp"
#include "saturate/optim/optimizer.hpp"
#include "saturate/policy.hpp"
#include "saturate/policy_defaults.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace saturate {

struct FitBegin;
struct FitEnd;

/// What each rank's weights count in the average.
enum class RankShare {
  targets,  ///< the targets of the steps that it has taken since the last average (McMahan et al. 2017, FedAvg)
  equal,    ///< the same (Stich 2018)
};

struct SyncEveryOptions {
  int64_t windows = 8;  ///< from one average to the next
  RankShare share = RankShare::targets;
  /// Optimizer state that is averaged besides, by its name in OptimizerState ("exp_avg", "momentum_buffer"), for the
  /// parameters that have it on every rank. Default: each rank keeps its own.
  std::vector<std::string> optimizer_state = {};
  int64_t chunk_bytes = int64_t{25} << 20;  ///< of one all-reduce
  UnevenInputs uneven = UnevenInputs::refuse;

  /// @throws ConfigError windows or chunk_bytes below 1, an empty name.
  void validate() const;
};

/// Each rank steps on its own gradients and its own count of targets; after every `windows` windows, and when fit ends,
/// the trained parameters and floating-point buffers become their average over ranks. Between averages ranks do not
/// wait for each other. With windows = 1 and SGD without momentum the steps are Ddp's.
///
/// Losses, norms and refused steps are each rank's own; evaluations are those of the averaged weights over all ranks'
/// batches. With one process nothing is done.
class SyncEvery {
 public:
  using axis = saturate::axis::distributed;

  explicit SyncEvery(distributed::ProcessGroup group, SyncEveryOptions options = {});

  void validate() const { options_.validate(); }
  /// Verifies that all ranks have the same model, and broadcasts rank 0's.
  /// @throws ConfigError the model is on another kind of device, or has SyncBatchNorm. @throws StateError, on every
  /// rank: models differ.
  void attach(torch::nn::Module& module, c10::Device device);
  /// When the Trainer is made. @throws ConfigError a ShardedOptimizer.
  void check_optimizer(const optim::Optimizer& optimizer) const;
  std::optional<c10::Device> device() const { return group_.device(); }

  detail::NothingScope micro_step(bool) { return {}; }
  void finish() {}
  /// A step that is refused on one rank is taken on the others.
  void agree(at::Tensor&) {}
  /// The window's targets stay this rank's own; an evaluation's are summed over ranks.
  void reduce_count(double& host, at::Tensor& device);
  void reduce_loss(at::Tensor& loss_sum);
  void reduce_sum(at::Tensor& sum);
  /// After the optimizer's step, or where it would have been. Averages after every `windows`-th window.
  /// @param refused 0-dim, not 0: the step was not taken; undefined: it was.
  void after_step(const at::Tensor& refused = {}, optim::Optimizer* optimizer = nullptr);
  /// Averages now. Called by every rank.
  /// @throws StateError, on every rank: ranks have trained different numbers of windows; nothing has been changed.
  void average();

  /// While it lives the model holds the average over ranks, and counts are summed over them. Made by every rank.
  class EvaluationScope {
   public:
    explicit EvaluationScope(SyncEvery* policy);
    ~EvaluationScope();
    EvaluationScope(const EvaluationScope&) = delete;
    EvaluationScope& operator=(const EvaluationScope&) = delete;

   private:
    SyncEvery* policy_;
    std::vector<at::Tensor> own_;
  };
  EvaluationScope evaluation_scope() { return EvaluationScope(this); }

  /// @throws ConfigError, on every rank: their numbers of windows differ, and they do not join.
  void require_even(std::optional<int64_t> windows, std::optional<int64_t> batches) const;
  bool any_has_data(bool here) const;
  void join_window() {}
  /// Whether a rank wants to stop: known on all of them after the next average.
  bool any_stops(bool here);
  /// The same at once, at an epoch's end.
  bool agree_to_stop(bool here);
  void on_fit_begin(const FitBegin& event);
  /// The last average, unless fit ends with one anyway or by an error.
  void on_fit_end(const FitEnd& event);

  const distributed::ProcessGroup& group() const { return group_; }
  /// How often weights have been averaged.
  int64_t averages() const;

 private:
  struct State;
  bool alone() const { return group_.world_size() == 1; }
  bool check_in() const;
  at::Tensor share() const;

  distributed::ProcessGroup group_;
  SyncEveryOptions options_;
  std::shared_ptr<State> state_;
};
static_assert(DistributedPolicy<SyncEvery>);

}  // namespace saturate
