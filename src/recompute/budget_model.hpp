// SPDX-License-Identifier: Apache-2.0
// Memory and time of a window for any choice of parts that are recomputed, from windows in which all of them were.
#pragma once

#include "saturate/recompute/memory_plan.hpp"
#include "window_record.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace saturate::detail {

/// By number of the part, whether it keeps its activations.
using Kept = std::vector<bool>;
bool contains(const Kept& outer, const Kept& inner);

/// Peaks of the stretches of a window that belong to one visit of a part, when everything is recomputed. To each come
/// the bytes of the parts that are kept and ran before it: forward has made them, and backward has not come to them.
struct VisitModel {
  std::size_t part = 0;
  int64_t forward = 0;       ///< its forward
  int64_t kept_forward = 0;  ///< its forward when it is kept
  int64_t after = 0;     ///< from its end to the next part's, or to the first second forward: its own bytes are there
  int64_t replay = 0;    ///< its second forward
  int64_t backward = 0;  ///< from there to the next second forward
  int64_t bytes = 0;     ///< what it holds more when it is kept
  int64_t least_bytes = 0;  ///< certainly
  bool replayed = false;    ///< backward has asked for it
};

/// One forward with its backward.
struct PassModel {
  int64_t before = 0;  ///< peak before the first part
  std::vector<VisitModel> visits;
};

std::vector<PassModel> passes_of(const WindowRecord& all_recomputed);

class BudgetModel {
 public:
  /// Highest of all memory and lowest of all times count.
  void add(const WindowRecord& all_recomputed);
  void forget_memory();
  /// For tests. @param seconds by part.
  void set(std::vector<PassModel> passes, std::vector<double> seconds);

  /// Whether it was seen to run.
  bool runs(std::size_t part) const { return part < parts_.size() && parts_[part].runs; }
  std::size_t parts() const { return parts_.size(); }
  double seconds(std::size_t part) const { return parts_[part].seconds; }
  /// What it holds when it is recomputed, and what it holds more when not, in one pass.
  int64_t input_bytes(std::size_t part) const { return parts_[part].input_bytes; }
  int64_t bytes(std::size_t part) const;
  /// Numbers of the parts in the order of execution.
  std::vector<std::size_t> order() const;
  /// Whether keeping it is worth anything, or free.
  bool may_keep(std::size_t part) const;

  int64_t peak(const Kept& kept) const;
  /// Not more than the true peak, as far as `least_bytes` are certain.
  int64_t least_peak(const Kept& kept) const;
  /// Forward time that does not run twice.
  double saved(const Kept& kept) const;

  /// The parts to keep so that the peak is within the budget and the most time is saved; none when nothing fits.
  Kept solve(int64_t budget) const;
  /// Adds parts one by one, those of most time first, while the peak is within the budget.
  void improve(Kept& kept, int64_t budget) const;
  /// What Recompute::every(n) keeps.
  Kept every(std::size_t n) const;
  std::vector<ParetoPoint> pareto() const;

 private:
  struct Part {
    double seconds = 0;  // 0: not known
    int64_t input_bytes = 0;
    bool runs = true;
  };
  void take_times(const WindowRecord& record);
  const PassModel& widest() const;

  std::vector<PassModel> passes_;  // of different sequences of parts
  std::vector<Part> parts_;
};

}  // namespace saturate::detail
