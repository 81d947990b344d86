// SPDX-License-Identifier: Apache-2.0
// Counts what a step computes and moves, as it runs:
//
//   st::FlopCounter counter;
//   trainer.step(batch);
//   counter.model_flops(), counter.hardware_flops()    // without and with what was recomputed
//   counter.work()                                     // operator by operator, for make_roofline()
#pragma once

#include "saturate/observe/op_work.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace saturate {

namespace detail {
struct FlopRecord;
}

/// Observes every operator of the process while it lives, forward, backward and update; one at a time. FLOPs are those
/// of torch.utils.flop_counter, also for attention on the CPU (which that one leaves out) and for the weights of
/// grouped convolutions (which that one counts as if there were no groups). Work is listed where it is done: under
/// autocast the product with the cast tensors, in a composite operator its parts.
///
/// Recomputed forwards are told apart where recompute(), Recompute or BudgetRecompute run them again. A block that a
/// custom autograd function runs again by itself counts as backward.
///
/// Times are the host's, for operators on the CPU; of others they are 0: the host does not see how long they take. The
/// counter costs some microseconds an operator: measure the step's own time without it.
class FlopCounter {
 public:
  /// @throws Error another one is observing.
  FlopCounter();
  ~FlopCounter();
  FlopCounter(const FlopCounter&) = delete;
  FlopCounter& operator=(const FlopCounter&) = delete;

  /// In the order of their first calls.
  std::vector<OpWork> work() const;
  int64_t flops(WorkPhase phase) const;
  /// Forward and backward: what the model needs (MFU).
  int64_t model_flops() const;
  /// And what was recomputed (HFU).
  int64_t hardware_flops() const;
  /// Of all operators, each tensor once an operator.
  int64_t bytes() const;
  /// Operators that compute products for which there is no formula (fused recurrent layers, quantized ones), by name:
  /// where there are any, the FLOPs are too few.
  std::vector<std::string> unknown() const;
  /// Forgets what was counted.
  void clear();

 private:
  std::unique_ptr<detail::FlopRecord> record_;
};

}  // namespace saturate
