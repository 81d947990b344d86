// SPDX-License-Identifier: Apache-2.0
// The recompute axis: which of the model's marked parts (marks.hpp) are recomputed in backward.
//
//   st::Trainer trainer(net, ..., st::Recompute::all());
//   st::Trainer trainer(net, ..., st::Recompute::named({"encoder\\.layers\\.\\d+"}));
//   st::Trainer trainer(net, ..., st::Recompute::budget(int64_t{6} << 30));  // bytes: as few parts as fit
#pragma once

#include "saturate/marks.hpp"
#include "saturate/policy.hpp"
#include "saturate/recompute/memory_plan.hpp"

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace saturate {
namespace detail {
class BudgetPlan;
class RecomputePlan;
class RecomputeObserver;

/// Spans one forward.
class RecomputePass {
 public:
  explicit RecomputePass(std::shared_ptr<RecomputePlan> plan);
  ~RecomputePass();
  RecomputePass(const RecomputePass&) = delete;
  RecomputePass& operator=(const RecomputePass&) = delete;

 private:
  std::unique_ptr<RecomputeObserver> observer_;
  std::unique_ptr<marks::Scope> marks_;
};

/// Spans forward and backward of a window.
class RecomputeWindow {
 public:
  explicit RecomputeWindow(std::shared_ptr<RecomputePlan> plan);
  ~RecomputeWindow();
  RecomputeWindow(const RecomputeWindow&) = delete;
  RecomputeWindow& operator=(const RecomputeWindow&) = delete;

 private:
  std::shared_ptr<RecomputePlan> plan_;
};
}  // namespace detail

/// Parts that forward runs through saturate::call are recomputed; a part inside a recomputed one belongs to it and is
/// none of its own. In evaluation, without gradients, nothing happens. A choice that meets no marked part at all is
/// warned about after the first forward.
class Recompute {
 public:
  using axis = saturate::axis::recompute;

  /// Every outermost marked part below the root.
  static Recompute all();
  /// Of the outermost marked parts, in the order in which a forward comes to them, the first and each n-th after it:
  /// the last ones, whose activations backward needs at once, are the least worth it. every(1) is all().
  /// @throws ConfigError n is less than 1.
  static Recompute every(int64_t n);
  /// Parts whose whole name matches one of the ECMAScript regular expressions; the outermost that does.
  /// @throws ConfigError no pattern, or not a regular expression; when the Trainer is made, or by attach(): a pattern
  /// matches no part, with a list of the names.
  static Recompute named(std::vector<std::string> patterns);
  /// Of the outermost marked parts as few as fit, in forward time: tensors that forward and backward of a window hold
  /// at once, beyond what is there when its first forward begins (parameters, optimizer state, batches; gradients count
  /// where the window makes them), take `bytes` at most on the model's device. The first windows recompute everything
  /// and are measured, the next ones run with the plan and try whether a single part more can be kept, and may hold
  /// that part's bytes too many; then the plan is settled, and made anew when windows grow. docs/recompute.md.
  /// @param clock seconds, for the parts' forward times; empty: wall time, waiting for a GPU while parts are timed.
  /// @throws ConfigError bytes is less than 1; from the first window, after its backward and before any update: not
  /// even all() fits.
  static Recompute budget(int64_t bytes, std::function<double()> clock = {});

  /// Looks the parts up. The Trainer does this; in a loop of your own, do it once. A budget() starts anew.
  void attach(const torch::nn::Module& model, c10::Device device = c10::Device(c10::DeviceType::CPU));
  /// @throws StateError before attach().
  detail::RecomputePass scope() const { return detail::RecomputePass(plan_); }
  /// Of use to budget() only, which measures from here on to after_backward(). On the CPU LibTorch's profiler cannot
  /// start within; on a GPU the allocator's peak statistics are reset.
  detail::RecomputeWindow window_scope() const { return detail::RecomputeWindow(plan_); }
  /// Within the window_scope(), when backward is over. @throws ConfigError see budget().
  void after_backward();

  /// What budget() has decided so far. Valid until the next call. @throws StateError another policy has no plan.
  const MemoryPlan& plan() const;
  /// Least memory against time that runs twice, predicted from what budget() has measured; empty before.
  /// @throws StateError another policy has none.
  std::vector<ParetoPoint> pareto() const;

 private:
  explicit Recompute(std::shared_ptr<detail::RecomputePlan> plan);
  detail::BudgetPlan& budget_plan() const;
  std::shared_ptr<detail::RecomputePlan> plan_;  // shared: a pass points to it while the policy may be moved
};
static_assert(RecomputePolicy<Recompute>);

}  // namespace saturate
