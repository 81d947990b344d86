// SPDX-License-Identifier: Apache-2.0
// No-op defaults of the axes that have no other policy yet.
#pragma once

#include "saturate/observe/window_replay.hpp"
#include "saturate/policy.hpp"

#include <ATen/core/Tensor.h>

namespace saturate {
namespace detail {
struct NothingScope {
  ~NothingScope() {}  // not trivial: a named scope is no unused variable
};
}  // namespace detail

/// Forward keeps what autograd keeps.
struct NoRecompute {
  using axis = saturate::axis::recompute;
  detail::NothingScope scope() const { return {}; }
};
static_assert(RecomputePolicy<NoRecompute>);

/// One process, no communication.
struct SingleProcess {
  using axis = saturate::axis::distributed;
  detail::NothingScope micro_step(bool) { return {}; }
  void finish() {}
  void agree(at::Tensor&) {}
  void reduce_count(double&, at::Tensor&) {}
};
static_assert(DistributedPolicy<SingleProcess>);

/// No averages are kept.
struct NoAverage {
  using axis = saturate::axis::averaging;
  void update(const at::Tensor&) {}
};
static_assert(AveragingPolicy<NoAverage>);

/// Nobody looks for non-finite values.
struct NoGuard {
  using axis = saturate::axis::guard;
  void begin() {}
  at::Tensor check(const at::Tensor&, const at::Tensor&, const at::Tensor&) { return {}; }
  void end(WindowReplay) {}
};
static_assert(GuardPolicy<NoGuard>);

/// Every step is launched operator by operator.
struct Eager {
  using axis = saturate::axis::capture;
  template <class Step>
  void run(Step&& step) {
    step();
  }
};
static_assert(CapturePolicy<Eager>);

}  // namespace saturate
