// SPDX-License-Identifier: Apache-2.0
#include "saturate/trace/host_syncs.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <utility>

namespace saturate {
namespace {

constexpr std::array waiting_calls{std::string_view("cudaDeviceSynchronize"), std::string_view("cudaStreamSynchronize"),
                                   std::string_view("cudaEventSynchronize"),  std::string_view("cudaMemcpy"),
                                   std::string_view("cuCtxSynchronize"),      std::string_view("cuStreamSynchronize"),
                                   std::string_view("cuEventSynchronize"),    std::string_view("hipDeviceSynchronize"),
                                   std::string_view("hipStreamSynchronize"),  std::string_view("hipEventSynchronize")};
constexpr std::array reading_operators{std::string_view("aten::item"),    std::string_view("aten::_local_scalar_dense"),
                                       std::string_view("aten::equal"),   std::string_view("aten::is_nonzero"),
                                       std::string_view("aten::nonzero"), std::string_view("aten::masked_select"),
                                       std::string_view("aten::unique"),  std::string_view("aten::_unique2"),
                                       std::string_view("aten::bincount")};

template <class List>
bool is_in(const List& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

bool is_sync(const Trace& trace, const TraceEvent& event) {
  if (event.kind == EventKind::runtime) return is_in(waiting_calls, trace.text(event.name));
  return event.kind == EventKind::op && is_in(reading_operators, trace.text(event.name));
}

// The optimizers' fused kernels read their step counts on the CPU, and do not on a GPU: nothing that anybody put there.
bool is_fused(const Trace& trace, const TraceEvent& event) {
  return event.kind == EventKind::op && trace.text(event.name).starts_with("aten::_fused_");
}

// Step around a time, of those in the order of their begins; -1: none.
int64_t step_at(const std::vector<TraceStep>& steps, int64_t time) {
  const auto after =
      std::partition_point(steps.begin(), steps.end(), [&](const TraceStep& step) { return step.begin_ns <= time; });
  return after == steps.begin() || std::prev(after)->end_ns <= time ? -1 : after - steps.begin() - 1;
}

std::string caller_of(const Timeline& timeline, uint32_t event) {
  const Trace& trace = timeline.trace();
  std::string inner_operator;
  for (uint32_t at = timeline.nodes()[event].parent; at != Timeline::none; at = timeline.nodes()[at].parent) {
    const std::string& name = trace.text(trace.events[at].name);
    const EventKind kind = trace.events[at].kind;
    if (kind == EventKind::annotation && !name.starts_with("ProfilerStep#")) return name;
    if (kind == EventKind::op && inner_operator.empty()) inner_operator = name;
  }
  return inner_operator;
}

}  // namespace

HostSyncs host_syncs(const Timeline& timeline) {
  const Trace& trace = timeline.trace();
  HostSyncs result{.steps = timeline.steps()};
  result.per_step.resize(result.steps.size());
  std::vector<bool> waits(trace.events.size());  // it, or something around it
  std::map<std::pair<std::string, std::string>, HostSync> rows;
  for (uint32_t i = 0; i < trace.events.size(); ++i) {
    const Timeline::Node& node = timeline.nodes()[i];
    const bool around = node.parent != Timeline::none && waits[node.parent];
    const bool here = is_sync(trace, trace.events[i]);
    waits[i] = around || here || is_fused(trace, trace.events[i]);
    if (around || !here) continue;
    const int64_t step = step_at(result.steps, node.begin_ns);
    if (step < 0) continue;
    ++result.per_step[static_cast<std::size_t>(step)];
    const std::string& call = trace.text(trace.events[i].name);
    std::string caller = caller_of(timeline, i);
    HostSync& row = rows[{call, caller}];
    row.call = call;
    row.caller = std::move(caller);
    ++row.count;
    row.ns += node.end_ns - node.begin_ns;
  }
  for (auto& [key, row] : rows) result.rows.push_back(std::move(row));
  std::stable_sort(result.rows.begin(), result.rows.end(),
                   [](const HostSync& a, const HostSync& b) { return a.ns > b.ns; });
  return result;
}

std::string over_budget(const HostSyncs& syncs, int64_t per_step) {
  const auto most = std::max_element(syncs.per_step.begin(), syncs.per_step.end());
  if (most == syncs.per_step.end() || *most <= per_step) return {};
  const TraceStep& step = syncs.steps[static_cast<std::size_t>(most - syncs.per_step.begin())];
  std::string text = (step.number < 0 ? "the trace" : "step " + std::to_string(step.number)) +
                     " waits for the device " + std::to_string(*most) + " times, " + std::to_string(per_step) +
                     " allowed; in all steps:";
  for (const HostSync& row : syncs.rows) {
    text += " " + row.call + (row.caller.empty() ? "" : " in " + row.caller) + " (" + std::to_string(row.count) + ");";
  }
  text.pop_back();
  return text;
}

}  // namespace saturate
