// SPDX-License-Identifier: Apache-2.0
#include "saturate/trace/trace.hpp"

#include <algorithm>

namespace saturate {

TextId Trace::intern(std::string_view text) {
  if (text.empty()) return 0;
  const auto found = ids_.find(text);
  if (found != ids_.end()) return found->second;
  const TextId id = static_cast<TextId>(texts_.size());
  texts_.emplace_back(text);
  ids_.emplace(texts_.back(), id);
  return id;
}

TextId Trace::find(std::string_view text) const {
  const auto found = ids_.find(text);
  return found == ids_.end() ? 0 : found->second;
}

TraceDetails& Trace::make_details(TraceEvent& event) {
  if (event.details == no_details) {
    event.details = static_cast<uint32_t>(details.size());
    details.emplace_back();
  }
  return details[event.details];
}

uint32_t Trace::lane(int64_t pid, int64_t tid) {
  const auto [place, is_new] = lane_ids_.try_emplace({pid, tid}, static_cast<uint32_t>(lanes.size()));
  if (is_new) lanes.push_back({.pid = pid, .tid = tid});
  return place->second;
}

void Trace::sort() {
  std::stable_sort(events.begin(), events.end(), [](const TraceEvent& a, const TraceEvent& b) {
    return a.start_ns != b.start_ns ? a.start_ns < b.start_ns : a.duration_ns > b.duration_ns;
  });
}

int64_t Trace::begin_ns() const {
  int64_t begin = events.empty() ? 0 : events.front().start_ns;
  for (const TraceEvent& event : events) begin = std::min(begin, event.start_ns);
  return begin;
}

int64_t Trace::end_ns() const {
  int64_t end = events.empty() ? 0 : events.front().end_ns();
  for (const TraceEvent& event : events) end = std::max(end, event.end_ns());
  return end;
}

}  // namespace saturate
