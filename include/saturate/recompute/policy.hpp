// SPDX-License-Identifier: Apache-2.0
// The recompute axis: which of the model's marked parts (marks.hpp) are recomputed in backward.
//
//   st::Trainer trainer(net, ..., st::Recompute::all());
//   st::Trainer trainer(net, ..., st::Recompute::named({"encoder\\.layers\\.\\d+"}));
#pragma once

#include "saturate/marks.hpp"
#include "saturate/policy.hpp"

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace saturate {
namespace detail {
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

  /// Looks the parts up. The Trainer does this; in a loop of your own, do it once.
  void attach(const torch::nn::Module& model, c10::Device = c10::Device(c10::DeviceType::CPU));
  /// @throws StateError before attach().
  detail::RecomputePass scope() const { return detail::RecomputePass(plan_); }

 private:
  explicit Recompute(std::shared_ptr<detail::RecomputePlan> plan);
  std::shared_ptr<detail::RecomputePlan> plan_;  // shared: a pass points to it while the policy may be moved
};
static_assert(RecomputePolicy<Recompute>);

}  // namespace saturate
