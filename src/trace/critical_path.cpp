// SPDX-License-Identifier: Apache-2.0
#include "saturate/trace/critical_path.hpp"

#include "collective_event.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

namespace saturate {
namespace {

constexpr uint32_t no_event = Timeline::none;

bool is_device_work(EventKind kind) {
  return kind == EventKind::kernel || kind == EventKind::memcpy || kind == EventKind::memset;
}

// What the walk asks of a trace, put in order once for all steps.
class PathIndex {
 public:
  explicit PathIndex(const Timeline& timeline)
      : timeline_(timeline),
        trace_(timeline.trace()),
        pieces_(trace_.lanes.size()),
        work_(trace_.lanes.size()),
        place_(trace_.events.size()),
        waits_(trace_.texts()),
        copies_(trace_.texts()) {
    for (TextId text = 0; text < waits_.size(); ++text) {
      const std::string_view name = trace_.text(text);
      waits_[text] = name.ends_with("Synchronize") || name.find("Synchronize_") != name.npos;
      copies_[text] = name.find("Memcpy") != name.npos || name.find("Memset") != name.npos;
    }
    for (uint32_t lane = 0; lane < trace_.lanes.size(); ++lane) {
      if (!trace_.lanes[lane].device) pieces_[lane] = timeline.segments(lane);
    }
    index_work();
    index_helpers();
  }

  const Timeline& timeline() const { return timeline_; }
  const Trace& trace() const { return trace_; }
  const TraceEvent& event(uint32_t i) const { return trace_.events[i]; }

  /// What a thread does right before a time: an event's own time, or a gap (no_event) back to the piece before.
  TraceSegment piece_before(uint32_t lane, int64_t time) const {
    constexpr int64_t ever = std::numeric_limits<int64_t>::min();
    const auto& pieces = pieces_[lane];
    const auto after = std::partition_point(pieces.begin(), pieces.end(),
                                            [&](const TraceSegment& piece) { return piece.begin_ns < time; });
    if (after == pieces.begin()) return {ever, time, no_event};
    const TraceSegment& last = *std::prev(after);
    return last.end_ns >= time ? TraceSegment{last.begin_ns, time, last.event}
                               : TraceSegment{last.end_ns, time, no_event};
  }

  bool waits(uint32_t call) const { return event(call).kind == EventKind::runtime && waits_[event(call).name]; }
  bool copies(uint32_t call) const { return event(call).kind == EventKind::runtime && copies_[event(call).name]; }

  /// The work that a call started; no_event: none.
  uint32_t started_by(uint32_t call) const {
    const auto place =
        std::lower_bound(started_.begin(), started_.end(), std::pair(event(call).correlation, uint32_t{0}));
    if (event(call).correlation < 0 || place == started_.end() || place->first != event(call).correlation)
      return no_event;
    return place->second;
  }

  /// The device's work that ends last in (after, until] and takes some time before it, of what `accept` takes.
  template <class Accept>
  uint32_t last_work(int64_t after, int64_t until, const Accept& accept) const {
    auto at = std::partition_point(by_end_.begin(), by_end_.end(), [&](const auto& end) { return end.first <= until; });
    while (at != by_end_.begin() && (--at)->first > after) {
      if (event(at->second).start_ns < until && accept(at->second)) return at->second;
    }
    return no_event;
  }

  /// What its stream did before; no_event: nothing.
  uint32_t work_before(uint32_t work) const {
    return place_[work] == 0 ? no_event : work_[event(work).lane][place_[work] - 1];
  }

  /// The thread that finished last in (after, until] what the training thread may be waiting for; no_event: none. As a
  /// root span.
  uint32_t last_helper(int64_t after, int64_t until, uint32_t but_lane) const {
    auto at =
        std::partition_point(helpers_.begin(), helpers_.end(), [&](const auto& end) { return end.first <= until; });
    while (at != helpers_.begin() && (--at)->first > after) {
      if (event(at->second).lane != but_lane) return at->second;
    }
    return no_event;
  }

  int64_t end_of(uint32_t i) const { return timeline_.nodes()[i].end_ns; }

 private:
  void index_work() {
    for (uint32_t i = 0; i < trace_.events.size(); ++i) {
      if (!is_device_work(event(i).kind)) continue;
      std::vector<uint32_t>& lane = work_[event(i).lane];
      place_[i] = static_cast<uint32_t>(lane.size());
      lane.push_back(i);
      by_end_.emplace_back(event(i).end_ns(), i);
      if (event(i).correlation >= 0) started_.emplace_back(event(i).correlation, i);
    }
    std::sort(by_end_.begin(), by_end_.end());
    std::sort(started_.begin(), started_.end());
  }

  // Autograd's nodes, what forward's arrows lead to, and collectives: work of other threads that training waits for. A
  // loader's threads have none of these.
  void index_helpers() {
    std::vector<std::pair<uint32_t, int64_t>> arrows;
    for (const TraceFlow& flow : trace_.flows) {
      if (flow.forward_backward && flow.finish) arrows.emplace_back(flow.lane, flow.time_ns);
    }
    std::sort(arrows.begin(), arrows.end());
    for (uint32_t i = 0; i < trace_.events.size(); ++i) {
      const Timeline::Node& node = timeline_.nodes()[i];
      const TraceEvent& root = event(i);
      if (!node.span || node.parent != no_event || trace_.lanes[root.lane].device || node.begin_ns >= node.end_ns)
        continue;
      if (root.kind != EventKind::op && root.kind != EventKind::annotation) continue;
      const auto arrow = std::lower_bound(arrows.begin(), arrows.end(), std::pair(root.lane, node.begin_ns));
      const bool led_to = arrow != arrows.end() && arrow->first == root.lane && arrow->second < node.end_ns;
      const TraceDetails* const details = trace_.details_of(root);
      if (led_to || (details != nullptr && details->forward_thread > 0) || trace::is_gloo_range(trace_, root) ||
          trace::is_c10d_operator(trace_, root) ||
          std::string_view(trace_.text(root.name)).starts_with("autograd::engine::evaluate_function")) {
        helpers_.emplace_back(node.end_ns, i);
      }
    }
    std::sort(helpers_.begin(), helpers_.end());
  }

  const Timeline& timeline_;
  const Trace& trace_;
  std::vector<std::vector<TraceSegment>> pieces_;      // of threads
  std::vector<std::vector<uint32_t>> work_;            // of streams, in the order of their begins
  std::vector<uint32_t> place_;                        // of an event in work_
  std::vector<std::pair<int64_t, uint32_t>> by_end_;   // all devices' work
  std::vector<std::pair<int32_t, uint32_t>> started_;  // by correlation
  std::vector<std::pair<int64_t, uint32_t>> helpers_;  // root spans by their ends
  std::vector<bool> waits_, copies_;                   // by TextId
};

// From the end of a step to its begin. Each move makes the time less, or goes to work that is earlier in its stream, or
// to a thread at a time where it was at work.
class PathWalk {
 public:
  PathWalk(const PathIndex& index, const TraceStep& step, const CriticalPathOptions& options)
      : index_(index), options_(options), time_(step.end_ns) {
    path_.step = step;
    home_ = step.lane != no_event ? step.lane : index.timeline().main_lane();
    lane_ = home_;
  }

  CriticalPath walk() {
    while (time_ > path_.step.begin_ns) {
      if (work_ != no_event) {
        on_stream();
      } else if (lane_ == no_event) {
        on_nothing();
      } else {
        on_thread();
      }
    }
    std::reverse(path_.segments.begin(), path_.segments.end());
    for (const PathSegment& part : path_.segments) {
      path_.ns[static_cast<std::size_t>(part.kind)] += part.end_ns - part.begin_ns;
    }
    return std::move(path_);
  }

 private:
  void take(int64_t begin, uint32_t lane, uint32_t event, PathKind kind) {
    begin = std::max(begin, path_.step.begin_ns);
    if (begin >= time_) return;
    PathSegment* const later = path_.segments.empty() ? nullptr : &path_.segments.back();
    if (later != nullptr && later->lane == lane && later->event == event && later->kind == kind) {
      later->begin_ns = begin;
    } else {
      path_.segments.push_back({begin, time_, lane, event, kind});
    }
    time_ = begin;
  }

  void go_to_work(uint32_t work) {
    work_ = work;
    lane_ = index_.event(work).lane;
  }
  void go_to_thread(uint32_t lane) {
    work_ = no_event;
    lane_ = lane;
  }

  // A trace of a device alone.
  void on_nothing() {
    const int64_t begin = path_.step.begin_ns;
    const uint32_t last = index_.last_work(begin, time_, [](uint32_t) { return true; });
    take(last == no_event ? begin : index_.event(last).end_ns(), no_event, no_event, PathKind::host);
    if (last != no_event) go_to_work(last);
  }

  void on_stream() {
    const uint32_t work = work_;
    const TraceEvent& event = index_.event(work);
    const PathKind kind = trace::is_collective_kernel(index_.trace(), event) ? PathKind::communication
                          : event.kind == EventKind::memcpy                  ? PathKind::copy
                                                                             : PathKind::device;
    take(event.start_ns, event.lane, work, kind);
    const uint32_t before = index_.work_before(work), launch = index_.timeline().launch_of(work);
    constexpr int64_t never = std::numeric_limits<int64_t>::min();
    const int64_t free = before == no_event ? never : index_.event(before).end_ns();
    const int64_t launched = launch == no_event ? never : index_.timeline().nodes()[launch].begin_ns;
    const int64_t ready = std::max(free, launched);
    if (launch != no_event && time_ - options_.launch_latency_ns > ready) {
      if (const uint32_t other = awaited_by(event, ready); other != no_event) {
        take(index_.event(other).end_ns(), event.lane, work, PathKind::sync);
        return go_to_work(other);
      }
    }
    if (before != no_event && free >= launched) {
      take(free, event.lane, work, PathKind::launch);
      return go_to_work(before);
    }
    if (launch == no_event) return go_to_thread(home_);
    take(launched, event.lane, work, PathKind::launch);
    go_to_thread(index_.event(launch).lane);
  }

  // The work on another stream of its device that ended last before it, and later than `ready`.
  uint32_t awaited_by(const TraceEvent& event, int64_t ready) const {
    const TraceLane& lane = index_.trace().lanes[event.lane];
    return index_.last_work(ready, event.start_ns, [&](uint32_t other) {
      const uint32_t on = index_.event(other).lane;
      return on != event.lane && index_.trace().lanes[on].pid == lane.pid;
    });
  }

  void on_thread() {
    const TraceSegment piece = index_.piece_before(lane_, time_);
    if (piece.event != no_event && waited_for_device(piece)) return;
    if (may_wait_for_thread(piece) && lane_ == home_ && waited_for_thread(piece)) return;
    if (piece.event == no_event && lane_ != home_ && home_ != no_event) return leave_thread(piece);
    take(piece.begin_ns, lane_, piece.event, kind_of(piece.event));
  }

  // A thread that was given nothing to do between two pieces of work, or until now.
  void leave_thread(const TraceSegment& gap) {
    const TraceSegment at_home = index_.piece_before(home_, time_);
    const bool worked_meanwhile = !may_wait_for_thread(at_home) || at_home.begin_ns > gap.begin_ns;
    if (worked_meanwhile || gap.begin_ns <= path_.step.begin_ns) return leave_for_home(at_home);
    take(gap.begin_ns, lane_, no_event, PathKind::host);
  }

  // Its wait began when it had handed the work over: it is not asked again whom it waits for.
  void leave_for_home(const TraceSegment& at_home) {
    go_to_thread(home_);
    if (may_wait_for_thread(at_home)) take(at_home.begin_ns, home_, at_home.event, kind_of(at_home.event));
  }

  bool waited_for_device(const TraceSegment& piece) {
    const uint32_t call = piece.event;
    const int64_t begin = index_.timeline().nodes()[call].begin_ns;
    uint32_t work = no_event;
    if (index_.waits(call)) {
      const TraceDetails* const details = index_.trace().details_of(index_.event(call));
      const int64_t stream = details == nullptr ? -1 : details->stream;
      const bool of_stream =
          stream >= 0 && index_.trace().text(index_.event(call).name).find("Stream") != std::string::npos;
      work = index_.last_work(begin, time_, [&](uint32_t candidate) {
        if (of_stream && index_.trace().lanes[index_.event(candidate).lane].tid != stream) return false;
        const uint32_t launch = index_.timeline().launch_of(candidate);
        return launch == no_event || index_.timeline().nodes()[launch].begin_ns <= begin;
      });
    } else if (index_.copies(call)) {
      work = index_.started_by(call);
      if (work != no_event && !ends_in(index_.event(work), begin)) work = no_event;
    }
    if (work == no_event) return false;
    take(index_.event(work).end_ns(), lane_, call, PathKind::sync);
    go_to_work(work);
    return true;
  }

  // Some of it is before now, and its end is later than `begin`.
  bool ends_in(const TraceEvent& work, int64_t begin) const {
    return work.start_ns < time_ && work.end_ns() <= time_ && work.end_ns() > begin;
  }

  // A thread waits in no operator but one that talks; a range or nothing is around it.
  bool may_wait_for_thread(const TraceSegment& piece) const {
    if (piece.event == no_event) return true;
    const TraceEvent& event = index_.event(piece.event);
    return (event.kind == EventKind::annotation && !index_.timeline().waits_for_data(piece.event)) ||
           trace::is_c10d_operator(index_.trace(), event);
  }

  bool waited_for_thread(const TraceSegment& piece) {
    const uint32_t helper = index_.last_helper(std::max(piece.begin_ns, path_.step.begin_ns), time_, home_);
    if (helper == no_event) return false;
    take(index_.end_of(helper), lane_, piece.event, kind_of(piece.event));
    go_to_thread(index_.event(helper).lane);
    return true;
  }

  PathKind kind_of(uint32_t event) const {
    if (event == no_event) return PathKind::host;
    const Timeline& timeline = index_.timeline();
    if (index_.event(event).kind == EventKind::runtime) return index_.waits(event) ? PathKind::sync : PathKind::launch;
    if (timeline.waits_for_data(event)) return PathKind::data;
    for (uint32_t at = event; at != no_event; at = timeline.nodes()[at].parent) {
      if (trace::is_gloo_range(index_.trace(), index_.event(at)) ||
          trace::is_c10d_operator(index_.trace(), index_.event(at))) {
        return PathKind::communication;
      }
    }
    return PathKind::host;
  }

  const PathIndex& index_;
  const CriticalPathOptions& options_;
  CriticalPath path_;
  int64_t time_;
  uint32_t home_ = no_event, lane_ = no_event, work_ = no_event;
};

}  // namespace

std::string_view to_string(PathKind kind) {
  switch (kind) {
    case PathKind::host: return "host";
    case PathKind::launch: return "launch";
    case PathKind::device: return "device";
    case PathKind::copy: return "copy";
    case PathKind::communication: return "communication";
    case PathKind::data: return "data wait";
    case PathKind::sync: return "sync";
  }
  return "unknown";
}

std::vector<CriticalPath> critical_paths(const Timeline& timeline, const CriticalPathOptions& options) {
  const PathIndex index(timeline);
  std::vector<CriticalPath> paths;
  for (const TraceStep& step : timeline.steps()) paths.push_back(PathWalk(index, step, options).walk());
  return paths;
}

}  // namespace saturate
