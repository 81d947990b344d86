// SPDX-License-Identifier: Apache-2.0
// What a step's duration is made of: the chain of work and waiting, over threads and streams, of which every part had
// to end before the next could begin. Making anything else faster gains nothing.
//
//   for (const CriticalPath& path : critical_paths(timeline)) std::cout << path.of(PathKind::device) << '\n';
#pragma once

#include "saturate/trace/timeline.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace saturate {

/// What a part of the path does.
enum class PathKind : uint8_t {
  host,           ///< a thread works, or does what no event shows
  launch,         ///< a call into the device's runtime, and what passes from a launch to the work's begin
  device,         ///< a kernel or memset
  copy,           ///< a copy on a device
  communication,  ///< a collective, on a stream or a thread
  data,           ///< the thread waits for data
  sync,           ///< a thread comes back from waiting for a device, or a stream waits for another one
};
inline constexpr std::size_t path_kinds = 7;
std::string_view to_string(PathKind kind);

struct PathSegment {
  int64_t begin_ns = 0, end_ns = 0;
  uint32_t lane = Timeline::none;  ///< index into Trace::lanes; none: the trace has no lane for it
  uint32_t event =
      Timeline::none;  ///< the innermost; of a launch's delay, the work that begins after it; none: no event
  PathKind kind = PathKind::host;
};

/// Of one step. Segments follow one another without gaps, from the step's begin to its end.
struct CriticalPath {
  TraceStep step;
  std::vector<PathSegment> segments;
  std::array<int64_t, path_kinds> ns{};  ///< by PathKind; adds up to the step's duration
  int64_t of(PathKind kind) const { return ns[static_cast<std::size_t>(kind)]; }
};

struct CriticalPathOptions {
  /// A kernel that begins later than this after both its launch and the work before it on its stream has waited for
  /// another stream: for what ended there last.
  int64_t launch_latency_ns = 20'000;
};

/// Found backwards, from the end of each step on its thread (a device that lags behind then is not waited for, unless
/// the thread waits for it): a thread's time is its own, until it waits. From cuda*Synchronize and from a copy call
/// that returns after its copy has ended, on to the device's work that ended last; from work on a stream to what was
/// before it there, or to its launch, whichever came later; from a thread that runs no operator, to the autograd or
/// Gloo thread that finished last; from such a thread's first work, back to the thread that trains. A launch call that
/// blocks since the device's queue is full counts as a launch. Parallel to Timeline::steps.
std::vector<CriticalPath> critical_paths(const Timeline& timeline, const CriticalPathOptions& options = {});

}  // namespace saturate
