// SPDX-License-Identifier: Apache-2.0
#include "saturate/trace/busy_time.hpp"

#include "spans.hpp"

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace saturate {
namespace {

using Segments = std::vector<TraceSegment>;

bool is_work(EventKind kind) {
  return kind == EventKind::kernel || kind == EventKind::memcpy || kind == EventKind::memset;
}

bool waits_for_device(const Trace& trace, uint32_t event) {
  const std::string_view name = trace.text(trace.events[event].name);
  if (name == "aten::_local_scalar_dense" || name == "aten::item") return true;
  return trace.events[event].kind == EventKind::runtime &&
         (name.find("Synchronize") != std::string_view::npos || name == "cudaMemcpy" || name == "hipMemcpy");
}

// The first segment that ends after a time.
Segments::const_iterator first_after(const Segments& segments, int64_t time) {
  return std::partition_point(segments.begin(), segments.end(),
                              [&](const TraceSegment& segment) { return segment.end_ns <= time; });
}

void add_idle(IdleTime& sum, const IdleTime& part) {
  sum.data_wait_ns += part.data_wait_ns;
  sum.synchronization_ns += part.synchronization_ns;
  sum.launch_ns += part.launch_ns;
  sum.no_event_ns += part.no_event_ns;
}

// What the host did in a gap of a device: asks the thread that trains first, and for the times in which that one shows
// nothing, the others that launch work, the busiest with it first.
class IdleReasons {
 public:
  explicit IdleReasons(const Timeline& timeline) : timeline_(timeline) {
    if (timeline.main_lane() != Timeline::none) hosts_.push_back(timeline.segments(timeline.main_lane()));
    for (const uint32_t lane : launching_lanes()) hosts_.push_back(timeline.segments(lane));
  }

  IdleGap explain(int64_t begin, int64_t end) const {
    IdleGap gap{.begin_ns = begin, .end_ns = end};
    std::unordered_map<uint32_t, int64_t> by_event;
    ask(0, begin, end, Timeline::none, gap.idle, by_event);
    int64_t longest = 0;
    for (const auto& [event, ns] : by_event) {
      // Of equals the earlier, so that the answer does not depend on the order in a hash table.
      if (ns < longest || (ns == longest && event > gap.host_event)) continue;
      longest = ns;
      gap.host_event = event;
    }
    return gap;
  }

 private:
  std::vector<uint32_t> launching_lanes() const {
    const Trace& trace = timeline_.trace();
    std::vector<int64_t> calls(trace.lanes.size());
    for (const TraceEvent& event : trace.events) {
      if (event.kind == EventKind::runtime && event.lane != timeline_.main_lane()) ++calls[event.lane];
    }
    std::vector<uint32_t> lanes;
    for (uint32_t lane = 0; lane < calls.size(); ++lane) {
      if (calls[lane] > 0 && !trace.lanes[lane].device) lanes.push_back(lane);
    }
    std::stable_sort(lanes.begin(), lanes.end(), [&](uint32_t a, uint32_t b) { return calls[a] > calls[b]; });
    return lanes;
  }

  // `around`: the annotation that the thread asked before shows, if it shows nothing else.
  void ask(std::size_t host, int64_t begin, int64_t end, uint32_t around, IdleTime& idle,
           std::unordered_map<uint32_t, int64_t>& by_event) const {
    if (begin >= end) return;
    if (host == hosts_.size()) {
      idle.no_event_ns += end - begin;
      if (around != Timeline::none) by_event[around] += end - begin;
      return;
    }
    for (auto at = first_after(hosts_[host], begin); at != hosts_[host].end() && at->begin_ns < end; ++at) {
      const int64_t from = std::max(begin, at->begin_ns), to = std::min(end, at->end_ns);
      ask(host + 1, begin, from, around, idle, by_event);
      if (int64_t* const share = share_of(at->event, idle)) {
        *share += to - from;
        by_event[at->event] += to - from;
      } else {
        ask(host + 1, from, to, around == Timeline::none ? at->event : around, idle, by_event);
      }
      begin = to;
    }
    ask(host + 1, begin, end, around, idle, by_event);
  }

  // nullptr: in nothing but the step's own annotation, the host is in code that the trace does not show.
  int64_t* share_of(uint32_t event, IdleTime& idle) const {
    if (timeline_.waits_for_data(event)) return &idle.data_wait_ns;
    if (waits_for_device(timeline_.trace(), event)) return &idle.synchronization_ns;
    const EventKind kind = timeline_.trace().events[event].kind;
    return kind == EventKind::annotation || kind == EventKind::other ? nullptr : &idle.launch_ns;
  }

  const Timeline& timeline_;
  std::vector<Segments> hosts_;
};

// All that is asked for a window, gathered once.
class BusyParts {
 public:
  explicit BusyParts(const Timeline& timeline) : timeline_(timeline), reasons_(timeline) {
    const Trace& trace = timeline.trace();
    for (const TraceEvent& event : trace.events) {
      if (is_work(event.kind)) work_[trace.lanes[event.lane].pid].emplace_back(event.start_ns, event.end_ns());
    }
    for (auto& [device, spans] : work_) spans = trace::merged(std::move(spans));
    for (uint32_t lane = 0; lane < trace.lanes.size(); ++lane) {
      if (!trace.lanes[lane].device) threads_.emplace_back(lane, timeline.segments(lane));
    }
  }

  BusyTime window(int64_t begin, int64_t end, const BusyOptions& options) const {
    BusyTime result{.begin_ns = begin, .end_ns = end};
    for (const auto& [device, spans] : work_) {
      result.devices.push_back(device_busy(device, trace::within(spans, begin, end), begin, end, options));
    }
    for (const auto& [lane, segments] : threads_) {
      const ThreadBusy thread = thread_busy(lane, segments, begin, end);
      if (thread.busy_ns > 0 || lane == timeline_.main_lane()) result.threads.push_back(thread);
    }
    std::stable_sort(result.threads.begin(), result.threads.end(), [&](const ThreadBusy& a, const ThreadBusy& b) {
      const bool a_is_main = a.lane == timeline_.main_lane(), b_is_main = b.lane == timeline_.main_lane();
      return a_is_main != b_is_main ? a_is_main : a.busy_ns > b.busy_ns;
    });
    return result;
  }

 private:
  DeviceBusy device_busy(int64_t device, const trace::Spans& work, int64_t begin, int64_t end,
                         const BusyOptions& options) const {
    DeviceBusy busy{.device = device, .busy_ns = trace::length(work)};
    for (const auto& [from, to] : trace::without(begin, end, work)) {
      busy.gaps.push_back(reasons_.explain(from, to));
      add_idle(busy.idle, busy.gaps.back().idle);
    }
    std::stable_sort(busy.gaps.begin(), busy.gaps.end(),
                     [](const IdleGap& a, const IdleGap& b) { return a.end_ns - a.begin_ns > b.end_ns - b.begin_ns; });
    if (busy.gaps.size() > options.gaps) busy.gaps.resize(options.gaps);
    return busy;
  }

  ThreadBusy thread_busy(uint32_t lane, const Segments& segments, int64_t begin, int64_t end) const {
    ThreadBusy thread{.lane = lane};
    for (auto at = first_after(segments, begin); at != segments.end() && at->begin_ns < end; ++at) {
      const EventKind kind = timeline_.trace().events[at->event].kind;
      const int64_t ns = std::min(at->end_ns, end) - std::max(at->begin_ns, begin);
      const bool waits = timeline_.waits_for_data(at->event);
      // An annotation alone is no work; nor are the profiler's own rows.
      if (kind == EventKind::other || (kind == EventKind::annotation && !waits)) continue;
      thread.busy_ns += ns;
      if (waits) thread.data_wait_ns += ns;
    }
    return thread;
  }

  const Timeline& timeline_;
  IdleReasons reasons_;
  std::map<int64_t, trace::Spans> work_;  // by device
  std::vector<std::pair<uint32_t, Segments>> threads_;
};

}  // namespace

double BusyTime::cores_busy() const {
  int64_t sum = 0;
  for (const ThreadBusy& thread : threads) sum += thread.busy_ns - thread.data_wait_ns;
  return end_ns > begin_ns ? static_cast<double>(sum) / static_cast<double>(end_ns - begin_ns) : 0;
}

BusyTime busy_time(const Timeline& timeline, const BusyOptions& options) {
  int64_t begin = timeline.steps()[0].begin_ns, end = begin;
  for (const TraceStep& step : timeline.steps()) end = std::max(end, step.end_ns);
  return busy_time(timeline, begin, end, options);
}

BusyTime busy_time(const Timeline& timeline, int64_t begin_ns, int64_t end_ns, const BusyOptions& options) {
  return BusyParts(timeline).window(begin_ns, end_ns, options);
}

std::vector<BusyTime> busy_time_of_steps(const Timeline& timeline, const BusyOptions& options) {
  const BusyParts parts(timeline);
  std::vector<BusyTime> steps;
  for (const TraceStep& step : timeline.steps()) steps.push_back(parts.window(step.begin_ns, step.end_ns, options));
  return steps;
}

}  // namespace saturate
