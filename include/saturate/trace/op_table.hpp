// SPDX-License-Identifier: Apache-2.0
// Operators by shape: how often, how long on the host and on the device, what they compute and move.
//
//   for (const OpTableRow& row : op_table(timeline)) std::cout << trace.text(row.name) << row.flops_per_second() <<
//   '\n';
#pragma once

#include "saturate/trace/timeline.hpp"

#include <cstdint>
#include <limits>
#include <vector>

namespace saturate {

/// All calls of one operator with the same shapes and types of arguments. Texts are the trace's.
struct OpTableRow {
  TextId name = 0, shapes = 0, types = 0;
  int64_t calls = 0;
  int64_t self_ns = 0;         ///< on its thread, without what it called
  int64_t total_ns = 0;        ///< with it; a call inside of another one of the same operator is not added
  int64_t self_device_ns = 0;  ///< of kernels, copies and memsets that it launched itself
  int64_t device_ns = 0;       ///< with those that the operators in it launched, as for total_ns
  /// Each product counts once, for the innermost operator that has a formula: aten::linear's for the aten::addmm in it.
  int64_t flops = 0;
  /// Likewise once; what has no product counts for the outermost operator that has a rule: all of aten::mean's for it,
  /// and none for the aten::sum in it. Calls whose bytes are not known count none.
  int64_t bytes = 0;
  int64_t unknown = 0;  ///< calls that compute products, but without the shapes or values to count them

  int64_t time_ns() const { return device_ns > 0 ? device_ns : total_ns; }
  double flops_per_second() const;  ///< over time_ns; 0 without time
  double bytes_per_second() const;
};

struct OpTableOptions {
  bool by_shape = true;  ///< false: one row an operator
  /// Calls that begin in [begin_ns, end_ns).
  int64_t begin_ns = std::numeric_limits<int64_t>::min(), end_ns = std::numeric_limits<int64_t>::max();
};

/// Sorted by self time on the device, where the trace has one, and then by that on the host. A device's work belongs to
/// the innermost operator around its launch, also in rows of calls that began before the work did.
std::vector<OpTableRow> op_table(const Timeline& timeline, const OpTableOptions& options = {});

}  // namespace saturate
