// SPDX-License-Identifier: Apache-2.0
#include "saturate/trace/timeline.hpp"

#include <algorithm>
#include <array>
#include <charconv>

namespace saturate {
namespace {

constexpr std::string_view step_prefix = "ProfilerStep#";
using Links = std::vector<std::pair<int64_t, uint32_t>>;

// The first event of an id, of links that are sorted.
uint32_t linked_event(const Links& links, int64_t id) {
  const auto found = std::lower_bound(links.begin(), links.end(), std::pair(id, uint32_t{0}));
  return found == links.end() || found->first != id ? Timeline::none : found->second;
}

// Events of one lane nest among those of their own tree.
int tree_of(EventKind kind) {
  switch (kind) {
    case EventKind::python: return 1;
    case EventKind::gpu_annotation: return 2;
    case EventKind::memory: return -1;
    default: return 0;
  }
}

}  // namespace

Timeline::Timeline(const Trace& trace)
    : trace_(&trace), nodes_(trace.events.size()), data_waits_(trace.texts()), spans_(trace.lanes.size()) {
  for (TextId text = 0; text < data_waits_.size(); ++text) {
    const std::string& name = trace.text(text);
    const auto has = [&](std::string_view part) { return name.find(part) != std::string::npos; };
    data_waits_[text] = name == "data wait" || (has("DataLoader") && (has("next") || name.starts_with("enumerate")));
  }
  nest();
  find_steps();
  find_main_lane();
  find_launches();
}

void Timeline::nest() {
  const std::vector<TraceEvent>& events = trace_->events;
  std::vector<std::array<std::vector<uint32_t>, 3>> open(trace_->lanes.size());
  for (uint32_t i = 0; i < events.size(); ++i) {
    const TraceEvent& event = events[i];
    const int tree = tree_of(event.kind);
    if (tree < 0) continue;
    if (tree == 0) spans_[event.lane].push_back(i);
    std::vector<uint32_t>& stack = open[event.lane][static_cast<std::size_t>(tree)];
    Node& node = nodes_[i];
    node = {.begin_ns = event.start_ns, .end_ns = event.end_ns(), .span = true};
    while (!stack.empty()) {
      const Node& around = nodes_[stack.back()];
      // What is around may itself begin later than it was recorded.
      node.begin_ns = std::max(node.begin_ns, around.begin_ns);
      node.end_ns = std::max(node.end_ns, node.begin_ns);
      if (around.end_ns > node.begin_ns) {
        const int64_t inside = around.end_ns - node.begin_ns, outside = node.end_ns - around.end_ns;
        if (outside <= 0) break;
        if (outside <= inside) {
          node.end_ns = around.end_ns;
          break;
        }
        node.begin_ns = around.end_ns;
      }
      stack.pop_back();
    }
    node.self_ns = node.end_ns - node.begin_ns;
    if (!stack.empty()) {
      node.parent = stack.back();
      nodes_[node.parent].self_ns -= node.self_ns;
    }
    stack.push_back(i);
  }
}

void Timeline::find_steps() {
  std::vector<TraceStep> ranges;
  const TextId range = trace_->find("step");
  for (const TraceEvent& event : trace_->events) {
    if (event.kind != EventKind::annotation) continue;
    TraceStep step{.begin_ns = event.start_ns, .end_ns = event.end_ns(), .lane = event.lane};
    const std::string_view name = trace_->text(event.name);
    if (name.starts_with(step_prefix)) {
      std::from_chars(name.data() + step_prefix.size(), name.data() + name.size(), step.number);
      steps_.push_back(step);
    } else if (event.name == range && range != 0 && (ranges.empty() || ranges[0].lane == event.lane)) {
      step.number = static_cast<int64_t>(ranges.size());
      ranges.push_back(step);
    }
  }
  if (steps_.empty()) steps_ = std::move(ranges);
  if (!steps_.empty()) return;
  steps_.push_back({.begin_ns = trace_->begin_ns(), .end_ns = trace_->end_ns(), .lane = none});
}

void Timeline::find_main_lane() {
  main_lane_ = steps_[0].lane;
  if (main_lane_ == none) {
    std::vector<int64_t> in_operators(trace_->lanes.size());
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (trace_->events[i].kind == EventKind::op) in_operators[trace_->events[i].lane] += nodes_[i].self_ns;
    }
    const auto most = std::max_element(in_operators.begin(), in_operators.end());
    if (most != in_operators.end() && *most > 0) main_lane_ = static_cast<uint32_t>(most - in_operators.begin());
    steps_[0].lane = main_lane_;
  }
}

void Timeline::find_launches() {
  const auto has_device = [](const TraceLane& lane) { return lane.device; };
  if (std::none_of(trace_->lanes.begin(), trace_->lanes.end(), has_device)) return;
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    const TraceEvent& event = trace_->events[i];
    if (event.kind == EventKind::runtime && event.correlation >= 0) launches_.emplace_back(event.correlation, i);
    const TraceDetails* const details = event.kind == EventKind::op ? trace_->details_of(event) : nullptr;
    if (details != nullptr && details->external_id >= 0) external_ids_.emplace_back(details->external_id, i);
  }
  std::sort(launches_.begin(), launches_.end());
  std::sort(external_ids_.begin(), external_ids_.end());
}

uint32_t Timeline::innermost(uint32_t lane, int64_t time_ns) const {
  const std::vector<uint32_t>& spans = spans_[lane];
  const auto after =
      std::partition_point(spans.begin(), spans.end(), [&](uint32_t i) { return nodes_[i].begin_ns <= time_ns; });
  if (after == spans.begin()) return none;
  uint32_t at = *std::prev(after);
  while (at != none && nodes_[at].end_ns <= time_ns) at = nodes_[at].parent;
  return at;
}

uint32_t Timeline::around(uint32_t event, EventKind kind) const {
  uint32_t at = nodes_[event].parent;
  while (at != none && trace_->events[at].kind != kind) at = nodes_[at].parent;
  return at;
}

uint32_t Timeline::launch_of(uint32_t device_event) const {
  const TraceEvent& event = trace_->events[device_event];
  if (event.correlation < 0 || !trace_->lanes[event.lane].device) return none;
  return linked_event(launches_, event.correlation);
}

uint32_t Timeline::operator_of(uint32_t event) const {
  if (!trace_->lanes[trace_->events[event].lane].device) return around(event, EventKind::op);
  const uint32_t launch = launch_of(event);
  const uint32_t launching = launch == none ? none : around(launch, EventKind::op);
  if (launching != none) return launching;
  const TraceDetails* const details = trace_->details_of(trace_->events[event]);
  return details == nullptr || details->external_id < 0 ? none : linked_event(external_ids_, details->external_id);
}

std::vector<TraceSegment> Timeline::segments(uint32_t lane) const {
  std::vector<TraceSegment> result;
  const auto add = [&](int64_t begin, int64_t end, uint32_t event) {
    if (begin < end) result.push_back({begin, end, event});
  };
  std::vector<std::pair<uint32_t, int64_t>> open;  // event, and since when time is its own
  const auto close_before = [&](int64_t time) {
    while (!open.empty() && nodes_[open.back().first].end_ns <= time) {
      const auto [event, since] = open.back();
      add(since, nodes_[event].end_ns, event);
      const int64_t end = nodes_[event].end_ns;
      open.pop_back();
      if (!open.empty()) open.back().second = end;
    }
  };
  for (const uint32_t i : spans_[lane]) {
    close_before(nodes_[i].begin_ns);
    if (!open.empty()) add(open.back().second, nodes_[i].begin_ns, open.back().first);
    open.emplace_back(i, nodes_[i].begin_ns);
  }
  close_before(std::numeric_limits<int64_t>::max());
  return result;
}

bool Timeline::waits_for_data(uint32_t event) const {
  for (; event != none; event = nodes_[event].parent) {
    if (data_waits_[trace_->events[event].name]) return true;
  }
  return false;
}

}  // namespace saturate
