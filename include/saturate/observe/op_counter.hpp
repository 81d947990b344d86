// SPDX-License-Identifier: Apache-2.0
// Which operators ran, and which of them made the host wait for a value:
//
//   OpCounter counter;
//   trainer.step(window);
//   counter.host_reads();        // 0: nothing was read
//   counter.count("aten::addmm")
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace saturate {
namespace detail {
struct OpRecord;
}

struct OpCounterOptions {
  /// Only operators of the thread that made the counter. Otherwise those of every thread: a CUDA backward pass runs on
  /// threads of LibTorch's, but a loader's workers are seen as well.
  bool this_thread_only = false;
};

/// Records every operator that LibTorch's dispatcher runs while the object lives, nested ones included (`aten::linear`
/// and the `aten::addmm` in it). Counters nest and may overlap. Costs a lock and a string an operator: not for timing.
class OpCounter {
 public:
  explicit OpCounter(OpCounterOptions options = {});
  ~OpCounter();
  OpCounter(const OpCounter&) = delete;
  OpCounter& operator=(const OpCounter&) = delete;

  /// Names in the order of their start, without the overload's name ("aten::add").
  std::vector<std::string> operators() const;
  /// How often each ran.
  std::map<std::string, int64_t> counts() const;
  int64_t count(const std::string& name) const;
  int64_t total() const;

  /// How many times the host read a value from a tensor, on the CPU too, where it costs nothing but would stall a GPU:
  /// `_local_scalar_dense` (`item`), `is_nonzero`, `equal`, operators whose result's shape depends on values
  /// (`nonzero`, `masked_select`, `unique`, `bincount`), and blocking copies from another device to the CPU. A read
  /// inside another one (`is_nonzero` calls `item`) is counted once. A copy that asks not to block, into pinned memory,
  /// is no read.
  ///
  /// Not counted: reads inside an optimizer kernel `aten::_fused_*`. LibTorch's own fused Adam, AdamW and Adagrad on
  /// the CPU read each parameter's step count (and a tensor learning rate) through `item`; on CUDA these kernels do
  /// not.
  int64_t host_reads() const;
  /// The reads by the name of the operator that made them.
  std::map<std::string, int64_t> host_reads_by_name() const;

  /// Forgets what was recorded.
  void clear();

 private:
  std::shared_ptr<detail::OpRecord> record_;
};

}  // namespace saturate
