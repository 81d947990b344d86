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
  /// A call that launches, and what it launches.
  TraceBuilder& launch(std::string_view name, int64_t call, int64_t begin, int64_t end, int32_t correlation,
                       int64_t of_stream = 7) {
    runtime("cudaLaunchKernel", call, call + 4);
    trace_.events.back().correlation = correlation;
    kernel(name, begin, end, of_stream);
    trace_.events.back().correlation = correlation;
    return *this;
  }
  TraceBuilder& copy(std::string_view name, int64_t begin, int64_t end, int64_t bytes) {
    add(saturate::EventKind::memcpy, stream(), name, begin, end);
    trace_.make_details(trace_.events.back()).bytes = bytes;
    return *this;
  }
  TraceBuilder& annotation(std::string_view name, int64_t begin, int64_t end) {
    return add(saturate::EventKind::annotation, cpu(), name, begin, end);
  }
  /// Links the event that was added last.
  TraceBuilder& correlation(int32_t id) {
    trace_.events.back().correlation = id;
    return *this;
  }
  /// Details of the event that was added last.
  saturate::TraceDetails& details() { return trace_.make_details(trace_.events.back()); }
  saturate::TextId text(std::string_view text) { return trace_.intern(text); }
  TraceBuilder& ranks(int rank, int world_size) {
    trace_.rank = rank;
    trace_.world_size = world_size;
    return *this;
  }
  /// A kernel of NCCL: `elements` floats of a collective over `group` ranks.
  TraceBuilder& collective(std::string_view kernel_name, std::string_view collective, int64_t begin, int64_t end,
                           int64_t elements, int64_t group, int64_t of_stream = 20) {
    kernel(kernel_name, begin, end, of_stream);
    saturate::TraceDetails& told = details();
    told.collective = text(collective);
    told.message_type = text("Float");
    told.message_elements = elements;
    told.group_size = group;
    return *this;
  }
  saturate::Trace done() {
    trace_.sort();
    return std::move(trace_);
  }

 private:
  saturate::Trace trace_;
};

}  // namespace support
