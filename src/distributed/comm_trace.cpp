// SPDX-License-Identifier: Apache-2.0
#include "../audit/write_file.hpp"
#include "saturate/distributed/comm_report.hpp"

#include <nlohmann/json.hpp>

#include <set>

namespace saturate::distributed {
namespace {

using Json = nlohmann::json;
constexpr int backward_row = 1, first_bucket_row = 2;

Json trace_event(int rank, int row, const std::string& name, double begin, double end, Json arguments) {
  return {{"ph", "X"},
          {"pid", rank},
          {"tid", row},
          {"name", name},
          {"cat", "ddp"},
          {"ts", 1e6 * begin},
          {"dur", 1e6 * (end - begin)},
          {"args", std::move(arguments)}};
}

Json trace_name(int rank, int row, const char* what, const std::string& name) {
  return {{"ph", "M"}, {"pid", rank}, {"tid", row}, {"name", what}, {"args", {{"name", name}}}};
}

void add_window(Json& events, const WindowTimes& window, const std::string& hook, int rank) {
  const double start = window.start;
  const auto milliseconds = [](double seconds) { return 1e3 * seconds; };
  events.push_back(trace_event(rank, backward_row, "backward", start, start + window.backward_end,
                               {{"window", window.number},
                                {"communication_ms", milliseconds(window.communication())},
                                {"overlapped_ms", milliseconds(window.overlapped())},
                                {"exposed_ms", milliseconds(window.exposed())}}));
  for (const BucketTimes& bucket : window.buckets) {
    const Json arguments{{"window", window.number},
                         {"bucket", bucket.index},
                         {"bytes", bucket.bytes},
                         {"gradient_bytes", bucket.gradient_bytes}};
    const std::string name = hook + " " + std::to_string(bucket.index);
    events.push_back(trace_event(rank, backward_row, "launch " + name, start + bucket.launched, start + bucket.issued,
                                 {{"bucket", bucket.index}}));
    events.push_back(trace_event(rank, first_bucket_row + static_cast<int>(bucket.index), name, start + bucket.launched,
                                 start + bucket.done, arguments));
  }
}

}  // namespace

std::string comm_trace(const std::vector<WindowTimes>& windows, const std::string& hook, int rank) {
  Json events = Json::array();
  events.push_back(trace_name(rank, 0, "process_name", "rank " + std::to_string(rank)));
  events.push_back(trace_name(rank, backward_row, "thread_name", "backward"));
  std::set<std::size_t> rows;
  for (const WindowTimes& window : windows) {
    for (const BucketTimes& bucket : window.buckets) {
      if (!rows.insert(bucket.index).second) continue;
      events.push_back(trace_name(rank, first_bucket_row + static_cast<int>(bucket.index), "thread_name",
                                  "bucket " + std::to_string(bucket.index)));
    }
    add_window(events, window, hook, rank);
  }
  return Json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump();
}

void write_comm_trace(const std::string& path, const MeasuredHook& hook) {
  audit::write_file(path, comm_trace(hook.windows(), hook.name(), hook.ranks().rank()));
}

}  // namespace saturate::distributed
