// SPDX-License-Identifier: Apache-2.0
// A trace's events in order: what lies in what on each lane, and where the steps are.
//
//   const Trace trace = read_trace(path);
//   const Timeline timeline(trace);
//   for (const SelfTime& row : self_times(timeline)) ...
#pragma once

#include "saturate/trace/trace.hpp"

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace saturate {

/// One training step: the profiler's annotation ProfilerStep#n, by its own times; in a trace without any, ranges that
/// are named "step", counted from 0.
struct TraceStep {
  int64_t number = -1;  ///< -1: the trace marks no steps, and the whole of it is taken for one
  int64_t begin_ns = 0, end_ns = 0;
  uint32_t lane = 0;  ///< the thread that ran it
};

/// A piece of a lane's time that belongs to one event and to none inside of it.
struct TraceSegment {
  int64_t begin_ns = 0, end_ns = 0;
  uint32_t event = 0;  ///< index into Trace::events
};

/// Spans of a lane form a tree: what begins and ends inside of another is its child. Clocks are read one after the
/// other, so a child may stick out: then it is cut off at its parent's end if the greater part of it is inside, and
/// begins behind it otherwise. So spans never overlap but inside of one another, and times add up exactly. Frames of
/// the Python stack have a tree of their own, beside that of operators and annotations, and so have annotations that
/// are projected onto a stream: a step that begins in one frame and ends in another stays whole.
///
/// The trace must outlive it. n log n in the number of events.
class Timeline {
 public:
  static constexpr uint32_t none = 0xffffffffu;
  struct Node {
    int64_t begin_ns = 0, end_ns = 0;  ///< after cutting
    int64_t self_ns = 0;               ///< without its children
    uint32_t parent = none;            ///< index into Trace::events
    bool span = false;                 ///< false: an instant (an allocation), which is in no tree
  };

  explicit Timeline(const Trace& trace);

  const Trace& trace() const { return *trace_; }
  /// Parallel to Trace::events.
  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<TraceStep>& steps() const { return steps_; }
  /// The lane of the thread that trains: that of the steps, or else the one with the most time in operators. `none`: no
  /// CPU thread is in the trace.
  uint32_t main_lane() const { return main_lane_; }
  /// The self times of a lane's spans, Python's frames and projected annotations left out, one after another.
  std::vector<TraceSegment> segments(uint32_t lane) const;
  /// Whether the event, or one around it, is a kind of waiting for data: a range or frame named "data wait", or of a
  /// DataLoader's next.
  bool waits_for_data(uint32_t event) const;

  /// A lane's spans in the order of their begins, parents before children; Python's frames and projected annotations
  /// left out.
  const std::vector<uint32_t>& spans(uint32_t lane) const { return spans_[lane]; }
  /// The innermost of them at a time; `none`: the lane has nothing there.
  uint32_t innermost(uint32_t lane, int64_t time_ns) const;
  /// The nearest event of a kind around another one, itself left out; `none`: it lies in none.
  uint32_t around(uint32_t event, EventKind kind) const;
  /// The runtime call that started the work of a device; `none`: the trace does not have it.
  uint32_t launch_of(uint32_t device_event) const;
  /// The operator that an event on a device belongs to, the innermost around its launch or else the one of its external
  /// id; of an event on a thread, the innermost around it. `none`: not told.
  uint32_t operator_of(uint32_t event) const;

 private:
  void nest();
  void find_steps();
  void find_main_lane();
  void find_launches();

  const Trace* trace_;
  std::vector<Node> nodes_;
  std::vector<TraceStep> steps_;
  std::vector<bool> data_waits_;                            // by TextId
  std::vector<std::vector<uint32_t>> spans_;                // by lane
  std::vector<std::pair<int64_t, uint32_t>> launches_;      // correlation and runtime call, sorted
  std::vector<std::pair<int64_t, uint32_t>> external_ids_;  // and operator, sorted; empty without a device
  uint32_t main_lane_ = none;
};

}  // namespace saturate
