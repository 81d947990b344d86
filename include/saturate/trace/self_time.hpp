// SPDX-License-Identifier: Apache-2.0
// Where time goes, by name: own time and time with everything inside.
#pragma once

#include "saturate/trace/timeline.hpp"

#include <cstdint>
#include <vector>

namespace saturate {

struct SelfTime {
  TextId name = 0;
  EventKind kind = EventKind::other;
  TextId shapes = 0;  ///< with by_shape: TraceDetails::shapes
  int64_t calls = 0;
  int64_t self_ns = 0;   ///< without what runs inside: over all rows of a lane they add up to its outermost spans
  int64_t total_ns = 0;  ///< with it; a call inside of one of the same name counts once
};

struct SelfTimeOptions {
  bool by_shape = false;  ///< a row for each name and shapes of inputs
  bool python = false;    ///< frames of the Python stack as well
  /// Only what begins in [begin_ns, end_ns).
  int64_t begin_ns = std::numeric_limits<int64_t>::min(), end_ns = std::numeric_limits<int64_t>::max();
  uint32_t lane = Timeline::none;  ///< only of this lane; none: of all
};

/// Rows of all lanes together, the most self time first. Projected annotations (EventKind::gpu_annotation) do no work
/// and are left out.
std::vector<SelfTime> self_times(const Timeline& timeline, const SelfTimeOptions& options = {});

}  // namespace saturate
