// SPDX-License-Identifier: Apache-2.0
#include "saturate/trace/busy_time.hpp"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

namespace saturate {
namespace {

using Spans = std::vector<std::pair<int64_t, int64_t>>;

// Sorted by begin: as few spans as cover the same.
Spans merged(Spans spans) {
  std::sort(spans.begin(), spans.end());
  Spans result;
  for (const auto& [begin, end] : spans) {
    if (!result.empty() && begin <= result.back().second) {
      result.back().second = std::max(result.back().second, end);
    } else {
      result.emplace_back(begin, end);
    }
  }
  return result;
}

int64_t total(const Spans& spans) {
  int64_t sum = 0;
  for (const auto& [begin, end] : spans) sum += end - begin;
  return sum;
}

Spans without(int64_t begin, int64_t end, const Spans& busy) {
  Spans gaps;
  for (const auto& [from, to] : busy) {
    if (begin < from) gaps.emplace_back(begin, from);
    begin = to;
  }
  if (begin < end) gaps.emplace_back(begin, end);
  return gaps;
}

bool is_work(EventKind kind) {
  return kind == EventKind::kernel || kind == EventKind::memcpy || kind == EventKind::memset;
}

bool waits_for_device(const Trace& trace, uint32_t event) {
  const std::string_view name = trace.text(trace.events[event].name);
  if (name == "aten::_local_scalar_dense" || name == "aten::item") return true;
  return trace.events[event].kind == EventKind::runtime &&
         (name.find("Synchronize") != std::string_view::npos || name == "cudaMemcpy" || name == "cudaStreamWaitEvent");
}

class IdleReasons {
 public:
  explicit IdleReasons(const Timeline& timeline) : timeline_(timeline) {
    if (timeline.main_lane() != Timeline::none) host_ = timeline.segments(timeline.main_lane());
  }

  IdleGap explain(int64_t begin, int64_t end, IdleTime& idle) const {
    IdleGap gap{begin, end};
    int64_t longest = 0;
    auto at = std::partition_point(host_.begin(), host_.end(),
                                   [&](const TraceSegment& segment) { return segment.end_ns <= begin; });
    int64_t covered = 0;
    std::map<uint32_t, int64_t> by_event;
    for (; at != host_.end() && at->begin_ns < end; ++at) {
      const int64_t here = std::min(end, at->end_ns) - std::max(begin, at->begin_ns);
      covered += here;
      share(at->event, idle) += here;
      const int64_t of_event = by_event[at->event] += here;
      if (of_event > longest) {
        longest = of_event;
        gap.host_event = at->event;
      }
    }
    idle.no_event_ns += end - begin - covered;
    return gap;
  }

 private:
  int64_t& share(uint32_t event, IdleTime& idle) const {
    if (timeline_.waits_for_data(event)) return idle.data_wait_ns;
    if (waits_for_device(timeline_.trace(), event)) return idle.synchronization_ns;
    // In nothing but the step's own annotation: the host is in code that the trace does not show.
    const EventKind kind = timeline_.trace().events[event].kind;
    return kind == EventKind::annotation || kind == EventKind::other ? idle.no_event_ns : idle.launch_ns;
  }

  const Timeline& timeline_;
  std::vector<TraceSegment> host_;
};

void add_devices(BusyTime& result, const Timeline& timeline, const BusyOptions& options) {
  const Trace& trace = timeline.trace();
  std::map<int64_t, Spans> work;
  for (const TraceEvent& event : trace.events) {
    if (!is_work(event.kind)) continue;
    const int64_t begin = std::max(event.start_ns, result.begin_ns), end = std::min(event.end_ns(), result.end_ns);
    Spans& spans = work[trace.lanes[event.lane].pid];  // a device that idles all the time is one too
    if (begin < end) spans.emplace_back(begin, end);
  }
  const IdleReasons reasons(timeline);
  for (auto& [device, spans] : work) {
    DeviceBusy busy{.device = device};
    const Spans together = merged(std::move(spans));
    busy.busy_ns = total(together);
    for (const auto& [begin, end] : without(result.begin_ns, result.end_ns, together)) {
      busy.gaps.push_back(reasons.explain(begin, end, busy.idle));
    }
    std::stable_sort(busy.gaps.begin(), busy.gaps.end(),
                     [](const IdleGap& a, const IdleGap& b) { return a.end_ns - a.begin_ns > b.end_ns - b.begin_ns; });
    if (busy.gaps.size() > options.gaps) busy.gaps.resize(options.gaps);
    result.devices.push_back(std::move(busy));
  }
}

void add_threads(BusyTime& result, const Timeline& timeline) {
  const Trace& trace = timeline.trace();
  for (uint32_t lane = 0; lane < trace.lanes.size(); ++lane) {
    if (trace.lanes[lane].device) continue;
    ThreadBusy thread{.lane = lane};
    for (const TraceSegment& segment : timeline.segments(lane)) {
      const EventKind kind = trace.events[segment.event].kind;
      const int64_t begin = std::max(segment.begin_ns, result.begin_ns), end = std::min(segment.end_ns, result.end_ns);
      const bool waits = timeline.waits_for_data(segment.event);
      // An annotation alone is no work; nor are the profiler's own rows.
      if (begin >= end || kind == EventKind::other || (kind == EventKind::annotation && !waits)) continue;
      thread.busy_ns += end - begin;
      if (waits) thread.data_wait_ns += end - begin;
    }
    if (thread.busy_ns > 0 || lane == timeline.main_lane()) result.threads.push_back(thread);
  }
  std::stable_sort(result.threads.begin(), result.threads.end(), [&](const ThreadBusy& a, const ThreadBusy& b) {
    const bool a_is_main = a.lane == timeline.main_lane(), b_is_main = b.lane == timeline.main_lane();
    return a_is_main != b_is_main ? a_is_main : a.busy_ns > b.busy_ns;
  });
}

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
  BusyTime result{.begin_ns = begin_ns, .end_ns = end_ns};
  add_devices(result, timeline, options);
  add_threads(result, timeline);
  return result;
}

}  // namespace saturate
