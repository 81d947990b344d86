// SPDX-License-Identifier: Apache-2.0
// What Recompute::budget(bytes) measured and decided, as a table.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

namespace saturate {

/// One outermost marked part of the model.
struct MemoryPlanRow {
  std::string part;              ///< its registered name
  double forward_ms = 0;         ///< of one window's forward passes, milliseconds
  int64_t bytes_recomputed = 0;  ///< what it keeps from forward to backward when it is recomputed: its inputs
  int64_t bytes_kept = 0;        ///< what it keeps when it is not
  bool recomputed = true;
};

/// Which parts are recomputed, and what that costs. Bytes are of tensors, beyond those that are there when a window's
/// first forward begins.
struct MemoryPlan {
  std::vector<MemoryPlanRow> rows;  ///< in the order of execution; empty before the first window was measured
  int64_t budget = 0;
  int64_t predicted_peak = 0;   ///< by the measured model
  int64_t measured_peak = 0;    ///< highest of the windows that ran with this plan; 0: none yet
  double recomputed_share = 0;  ///< of the parts' forward time, how much runs twice; 0 to 1
  bool settled = false;         ///< false: still measuring or trying, and what is recomputed may change

  /// Writes the table, one part a line.
  void print(std::ostream& out) const;
};

/// A plan of the curve between recomputing everything and nothing: no plan that the model knows of needs less memory
/// for the same time.
struct ParetoPoint {
  int64_t peak_bytes = 0;        ///< predicted
  double extra_ms = 0;           ///< forward time that runs twice in a window, milliseconds
  int64_t recomputed_parts = 0;  ///< how many are recomputed
};

}  // namespace saturate
