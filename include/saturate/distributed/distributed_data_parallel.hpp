// SPDX-License-Identifier: Apache-2.0
// Data parallel training on c10d's Reducer: every rank computes the gradient of its own samples, and buckets of
// gradients are reduced while backward still runs.
//
//   st::distributed::DistributedDataParallel ddp(*net, group);
//   for (...) {
//     for (int i = 0; i < k; ++i) {
//       const auto micro_step = ddp.micro_step(/*last=*/i + 1 == k);     // reduces in the last one only
//       loss = ...; ddp.before_backward(loss); loss.backward();
//     }
//     ddp.finish();
//     optimizer.step();
//   }
#pragma once

#include "saturate/distributed/comm_hook.hpp"
#include "saturate/distributed/process_group.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace saturate::distributed {

enum class Buffers {
  broadcast,  ///< those of rank 0, before each synced forward (BatchNorm's statistics)
  keep,       ///< every rank has its own after the first broadcast
};

struct DdpOptions {
  int64_t bucket_bytes = int64_t{25} << 20;
  int64_t first_bucket_bytes = int64_t{1} << 20;  ///< of the bucket that is ready first
  /// Some parameters get no gradient in some steps. Costs a walk through the graph; without it, that is an error.
  bool find_unused_parameters = false;
  /// The same parameters get gradients, as often, in every window.
  bool static_graph = false;
  /// Gradients are views of the buckets: no second copy of them.
  bool gradient_as_bucket_view = true;
  Buffers buffers = Buffers::broadcast;
  std::shared_ptr<CommHook> hook;  ///< none: AllReduce

  /// @throws ConfigError a size that is not positive; find_unused_parameters and static_graph together.
  void validate() const;
};

enum class Reduction { mean, sum };

class DistributedDataParallel {
 public:
  /// Called by every rank. Broadcasts parameters and buffers of rank 0.
  /// @param reduction of gradients over ranks: the mean, for losses that are means of equal batches; or the sum, for
  /// losses that were divided by the count over all ranks.
  /// @throws ConfigError options; no parameter requires a gradient; sparse layouts.
  /// @throws StateError, on every rank: parameters differ in number, name, shape, dtype or requires_grad; the first is
  /// named with both.
  DistributedDataParallel(torch::nn::Module& module, ProcessGroup group, DdpOptions options = {},
                          Reduction reduction = Reduction::mean);
  ~DistributedDataParallel();
  DistributedDataParallel(DistributedDataParallel&&) noexcept;
  DistributedDataParallel& operator=(DistributedDataParallel&&) noexcept;

  /// Spans forward and backward of a micro-batch.
  class MicroStep {
   public:
    MicroStep(DistributedDataParallel* ddp, bool last);
    ~MicroStep();
    MicroStep(const MicroStep&) = delete;
    MicroStep& operator=(const MicroStep&) = delete;

   private:
    DistributedDataParallel* ddp_;
    int exceptions_;
  };
  friend class MicroStep;
  /// @param last gradients are reduced in this backward; before it they add up on this rank.
  MicroStep micro_step(bool last = true) { return MicroStep(this, last); }
  /// Between forward and backward; needed with find_unused_parameters and MeasuredHook only.
  void before_backward(const at::Tensor& loss);
  /// 0, with a gradient of zero for every parameter: the loss of a rank that has no samples while others do, so that it
  /// takes part in their reductions. A parameter that gets no gradient anywhere then gets a gradient of zero.
  at::Tensor zero_loss() const;
  /// After the last backward.
  /// @throws StateError a parameter got no gradient, without find_unused_parameters; named.
  void finish();

  /// This rank cannot finish the window (it ran out of memory, in any micro-batch), which the others do: takes part in
  /// what is left of their reductions with nothing. Ranks then agree to abandon_window().
  /// @param before_reductions what every rank sends between the last micro-batch's begin and its backward, if anything.
  void finish_for_others(const std::function<void()>& before_reductions = {});
  /// By every rank, after its last backward and before finish(): gradients of this window count nowhere, hooks forget
  /// it, and it can begin again, with the first micro-batch.
  void abandon_window();

  const ProcessGroup& group() const;
  CommHook& hook();
  /// Bytes of this rank's buckets, in the order in which they are reduced.
  std::vector<int64_t> bucket_bytes() const;
  /// How often the hook was called so far.
  int64_t reductions() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace saturate::distributed
