// SPDX-License-Identifier: Apache-2.0
#include "saturate/trace/device_work.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace saturate {
namespace {

// "Memcpy HtoD (Pageable -> Device)".
std::pair<std::string, CopyMemory> kind_of_copy(std::string_view name) {
  constexpr std::string_view prefix = "Memcpy ";
  std::string direction;
  if (name.starts_with(prefix)) {
    name.remove_prefix(prefix.size());
    direction = name.substr(0, name.find(' '));
  }
  const auto has = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  return {direction, has("Pageable") ? CopyMemory::pageable : has("Pinned") ? CopyMemory::pinned : CopyMemory::unknown};
}

using Launches = std::unordered_map<int32_t, int64_t>;  // correlation, and when the call began

Launches launches_in(const Trace& trace) {
  Launches launches;
  for (const TraceEvent& event : trace.events) {
    if (event.kind == EventKind::runtime && event.correlation >= 0) launches[event.correlation] = event.start_ns;
  }
  return launches;
}

bool is_driver_allocation(std::string_view name) {
  return name == "cudaMalloc" || name == "cudaFree" || name == "hipMalloc" || name == "hipFree";
}

// Kineto's "Bytes" are negative for a release.
void add_memory_event(const TraceDetails& details, DeviceWork& work) {
  MemoryWork& memory = details.device_type > 0 ? work.device_memory : work.host_memory;
  if (details.bytes >= 0) {
    ++memory.allocations;
    memory.allocated_bytes += details.bytes;
  } else {
    ++memory.releases;
    memory.released_bytes -= details.bytes;
  }
  memory.peak_allocated = std::max(memory.peak_allocated, details.total_allocated);
  memory.peak_reserved = std::max(memory.peak_reserved, details.total_reserved);
}

}  // namespace

double CopyWork::bytes_per_second() const {
  return ns > 0 ? static_cast<double>(bytes) * 1e9 / static_cast<double>(ns) : 0;
}

DeviceWork device_work(const Timeline& timeline, const DeviceWorkOptions& options) {
  const Trace& trace = timeline.trace();
  const Launches launches = launches_in(trace);
  DeviceWork work;
  std::map<std::pair<std::string, CopyMemory>, CopyWork> copies;
  std::vector<int64_t> done(trace.lanes.size(), std::numeric_limits<int64_t>::min());  // end of a stream's work so far
  for (const TraceEvent& event : trace.events) {
    const int64_t ns = event.duration_ns;
    switch (event.kind) {
      case EventKind::kernel: {
        ++work.kernels;
        work.kernel_ns += ns;
        if (ns < options.small_ns) {
          ++work.small_kernels;
          work.small_kernel_ns += ns;
        }
        const auto launch = launches.find(event.correlation);
        if (launch != launches.end()) {
          ++work.launched;
          work.launch_delay_ns += event.start_ns - launch->second;
          if (launch->second >= done[event.lane]) ++work.launched_late;
        }
        break;
      }
      case EventKind::memcpy: {
        const auto kind = kind_of_copy(trace.text(event.name));
        CopyWork& copy = copies[kind];
        std::tie(copy.direction, copy.host) = kind;
        ++copy.count;
        copy.ns += ns;
        const TraceDetails* const details = trace.details_of(event);
        if (details != nullptr && details->bytes > 0) copy.bytes += details->bytes;
        break;
      }
      case EventKind::memset:
        ++work.memsets;
        work.memset_ns += ns;
        break;
      case EventKind::runtime:
        if (!is_driver_allocation(trace.text(event.name))) continue;
        ++work.driver_allocations;
        work.driver_allocation_ns += ns;
        if (trace.text(event.name).ends_with("Free")) ++work.driver_releases;
        continue;
      case EventKind::memory:
        if (const TraceDetails* const details = trace.details_of(event)) add_memory_event(*details, work);
        continue;
      default: continue;
    }
    done[event.lane] = std::max(done[event.lane], event.end_ns());
  }
  if (work.launched > 0) work.launch_delay_ns /= work.launched;
  for (auto& [kind, copy] : copies) work.copies.push_back(std::move(copy));
  std::stable_sort(work.copies.begin(), work.copies.end(),
                   [](const CopyWork& a, const CopyWork& b) { return a.ns > b.ns; });
  return work;
}

}  // namespace saturate
