// SPDX-License-Identifier: Apache-2.0
#include "saturate/trace/self_time.hpp"

#include <algorithm>
#include <map>
#include <tuple>

namespace saturate {
namespace {

bool inside_of_same_name(const Timeline& timeline, uint32_t event) {
  const Trace& trace = timeline.trace();
  for (uint32_t at = timeline.nodes()[event].parent; at != Timeline::none; at = timeline.nodes()[at].parent) {
    if (trace.events[at].name == trace.events[event].name && trace.events[at].kind == trace.events[event].kind) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::vector<SelfTime> self_times(const Timeline& timeline, const SelfTimeOptions& options) {
  const Trace& trace = timeline.trace();
  std::map<std::tuple<TextId, EventKind, TextId>, SelfTime> rows;
  for (uint32_t i = 0; i < trace.events.size(); ++i) {
    const TraceEvent& event = trace.events[i];
    const Timeline::Node& node = timeline.nodes()[i];
    if (!node.span || event.kind == EventKind::gpu_annotation) continue;
    if (event.kind == EventKind::python && !options.python) continue;
    if (options.lane != Timeline::none && event.lane != options.lane) continue;
    if (event.start_ns < options.begin_ns || event.start_ns >= options.end_ns) continue;
    const TraceDetails* const details = options.by_shape ? trace.details_of(event) : nullptr;
    const TextId shapes = details == nullptr ? 0 : details->shapes;
    SelfTime& row = rows[{event.name, event.kind, shapes}];
    row.name = event.name;
    row.kind = event.kind;
    row.shapes = shapes;
    ++row.calls;
    row.self_ns += node.self_ns;
    if (!inside_of_same_name(timeline, i)) row.total_ns += node.end_ns - node.begin_ns;
  }
  std::vector<SelfTime> result;
  for (const auto& [key, row] : rows) result.push_back(row);
  std::stable_sort(result.begin(), result.end(),
                   [](const SelfTime& a, const SelfTime& b) { return a.self_ns > b.self_ns; });
  return result;
}

}  // namespace saturate
