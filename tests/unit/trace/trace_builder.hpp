// SPDX-License-Identifier: Apache-2.0
// Small traces, written by hand in a line an event.
#pragma once

#include "saturate/trace/trace.hpp"

#include <string>
#include <string_view>
#include <utility>

namespace support {

class TraceBuilder {
 public:
  uint32_t cpu(int64_t thread = 1) { return trace_.lane(100, thread); }
  uint32_t stream(int64_t stream = 7, int64_t device = 0) {
    const uint32_t lane = trace_.lane(device, stream);
    trace_.lanes[lane].device = true;
    return lane;
  }
  TraceBuilder& add(saturate::EventKind kind, uint32_t lane, std::string_view name, int64_t begin, int64_t end) {
    trace_.events.push_back(
        {.start_ns = begin, .duration_ns = end - begin, .name = trace_.intern(name), .lane = lane, .kind = kind});
    return *this;
  }
  TraceBuilder& op(std::string_view name, int64_t begin, int64_t end) {
    return add(saturate::EventKind::op, cpu(), name, begin, end);
  }
  TraceBuilder& step(int number, int64_t begin, int64_t end) {
    return add(saturate::EventKind::annotation, cpu(), "ProfilerStep#" + std::to_string(number), begin, end);
  }
  TraceBuilder& runtime(std::string_view name, int64_t begin, int64_t end) {
    return add(saturate::EventKind::runtime, cpu(), name, begin, end);
  }
  TraceBuilder& kernel(std::string_view name, int64_t begin, int64_t end, int64_t of_stream = 7) {
    return add(saturate::EventKind::kernel, stream(of_stream), name, begin, end);
  }
  saturate::Trace done() {
    trace_.sort();
    return std::move(trace_);
  }

 private:
  saturate::Trace trace_;
};

}  // namespace support
