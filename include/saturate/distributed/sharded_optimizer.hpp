// SPDX-License-Identifier: Apache-2.0
// Optimizer state spread over ranks: each keeps the moments of its share of the parameters, and sends what it has
// updated to the others.
//
//   st::distributed::ShardedOptimizer optimizer(group, net->parameters(),
//                                               [](auto params) { return st::optim::AdamW(std::move(params)); });
//   st::Trainer trainer(net, std::move(optimizer), st::CrossEntropy{}, st::Ddp(group));
#pragma once

#include "saturate/distributed/process_group.hpp"
#include "saturate/optim/cohort_optimizer.hpp"
#include "saturate/optim/optimizer.hpp"
#include "saturate/optim/torch_optimizer.hpp"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace saturate::distributed {

/// An optimizer type that says `static constexpr bool needs_all_parameters = true;`: a step on some parameters is not
/// what a step on all of them does to these (it uses a norm over all, say).
template <class O>
concept NeedsAllParameters = requires {
  requires O::needs_all_parameters;
};

/// The owner of each parameter, parallel to `params`: from the largest to the smallest, trained ones first, each goes
/// to the rank with the fewest bytes so far. The same on every rank.
std::vector<int> owners_by_size(const std::vector<at::Tensor>& params, int ranks);

/// ZeRO, stage 1 (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020).
/// Every parameter has one owner, as a whole, so that any method that steps on each parameter alone works, LARS and
/// LAMB too. Gradients are whole on every rank (Ddp reduces them), so that norms and clipping see all of them. A step
/// is bit for bit that of the inner optimizer over all parameters, and `found_inf` is to be the same on all ranks; a
/// refused step sends parameters as they were.
///
/// Parameters travel flattened, one message an owner and dtype. Between start_step() and wait() they take a second copy
/// of the trained parameters. With one process this is the inner optimizer and nothing more.
class ShardedOptimizer final : public optim::Optimizer {
 public:
  using Optimizer::step;
  /// Called by every rank. `make` makes the inner optimizer over this rank's part of what is given: parameters, or
  /// groups (some may be empty). A rank without parameters gives it a tensor without elements.
  /// @throws ConfigError, on every rank: `make` throws on one; no parameter, or one undefined or in two groups; inner
  /// optimizers of different types or options; one that needs all parameters at once (LBFGS).
  /// @throws StateError, on every rank: parameters differ in number, shape, dtype, requires_grad or group.
  template <class Make>
  ShardedOptimizer(ProcessGroup group, std::vector<at::Tensor> params, Make&& make)
      : ShardedOptimizer(
            Maker([&make](std::vector<optim::ParamGroup> own) { return owned(make(std::move(own[0].params))); }),
            std::move(group), {optim::ParamGroup{.params = std::move(params)}}) {}
  template <class Make>
  ShardedOptimizer(ProcessGroup group, std::vector<optim::ParamGroup> groups, Make&& make)
      : ShardedOptimizer(Maker([&make](std::vector<optim::ParamGroup> own) { return owned(make(std::move(own))); }),
                         std::move(group), std::move(groups)) {}
  ~ShardedOptimizer() override;
  ShardedOptimizer(ShardedOptimizer&&) noexcept;
  ShardedOptimizer& operator=(ShardedOptimizer&&) noexcept;

  /// Steps and waits. @throws ConfigError, on every rank: a sparse gradient, or one of another dtype or device.
  void step(const optim::StepArgs& args) override;
  /// Steps on this rank's parameters and starts sending them: the others' are up to date after wait() only.
  void start_step(const optim::StepArgs& args) override;
  /// Until every parameter is up to date on this rank (on a GPU: for what is launched from now on). To be called before
  /// the next forward; everything here that reads parameters or state does. Nothing under way: returns at once.
  /// @throws DistributedError a rank does not answer. Parameters are as before the step then, but for this rank's own.
  void wait() const override;

  void zero_grad(bool set_to_none = true) override;
  std::vector<at::Tensor> parameters() const override;
  void gather_gradients() override;
  std::vector<at::Tensor> gradients() const override;
  std::vector<std::size_t> groups() const override;
  double lr(std::size_t group = 0) const override;
  void set_lr(double lr, std::size_t group = 0) override;
  void name_parameters(const optim::NamedTensors& named) override;
  bool refuses_on_device() const override;

  /// Of all parameters, on every rank. Called by every rank. This rank's tensors are the live ones, the others' copies:
  /// for its time it takes the memory that sharding saves.
  optim::OptimizerState state() const override;
  /// Of this rank's parameters. Not sent anywhere: any rank may call it alone.
  optim::OptimizerState local_state() const;
  /// Takes state() of any number of ranks, or of the inner optimizer over all parameters. Called by every rank.
  /// @throws StateError, on every rank: one could not load its part; nothing has been changed on any.
  void load_state(const optim::OptimizerState& state) override;
  /// On this rank.
  optim::StateBytes state_bytes() const override;

  /// The rank that owns each parameter; parallel to parameters().
  const std::vector<int>& owners() const;

 private:
  using Maker = std::function<std::shared_ptr<optim::Optimizer>(std::vector<optim::ParamGroup>)>;
  ShardedOptimizer(const Maker& make, ProcessGroup group, std::vector<optim::ParamGroup> groups);

  template <class O>
  static std::shared_ptr<optim::Optimizer> owned(O&& optimizer) {
    static_assert(!NeedsAllParameters<std::remove_cvref_t<O>>,
                  "saturate: this optimizer needs all parameters at once, and a rank of ShardedOptimizer has only its "
                  "own; use it without sharding (docs/distributed.md#sharded-optimizer-state)");
    return optim::detail::own(std::forward<O>(optimizer));
  }

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace saturate::distributed
