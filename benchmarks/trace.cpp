// SPDX-License-Identifier: Apache-2.0
// saturate-trace: what a profile of PyTorch's says, from C++ or Python: how busy device and threads are, what the host
// did while the device was idle, where the time goes.
//
//   saturate-trace rank0.pt.trace.json.gz
//   saturate-trace folder_with_one_trace_a_rank --top 20
#include "saturate/error.hpp"
#include "saturate/trace/busy_time.hpp"
#include "saturate/trace/device_work.hpp"
#include "saturate/trace/host_syncs.hpp"
#include "saturate/trace/read_trace.hpp"
#include "saturate/trace/self_time.hpp"

#include <CLI/CLI.hpp>

#include <sys/stat.h>

#include <cinttypes>
#include <cstdio>
#include <string>
#include <vector>

namespace st = saturate;

namespace {

struct Options {
  std::string path;
  std::size_t top = 15;
  bool python = false, shapes = false;
};

double milliseconds(int64_t ns) { return static_cast<double>(ns) * 1e-6; }
double percent(int64_t part, int64_t whole) {
  return whole > 0 ? 100 * static_cast<double>(part) / static_cast<double>(whole) : 0;
}

const char* kind_text(st::EventKind kind) {
  switch (kind) {
    case st::EventKind::op: return "operator";
    case st::EventKind::annotation: return "range";
    case st::EventKind::python: return "python";
    case st::EventKind::runtime: return "CUDA call";
    case st::EventKind::kernel: return "kernel";
    case st::EventKind::memcpy: return "copy";
    case st::EventKind::memset: return "memset";
    case st::EventKind::sync: return "device wait";
    case st::EventKind::overhead: return "profiler";
    default: return "other";
  }
}

void print_head(const st::Trace& trace, const st::Timeline& timeline) {
  std::printf("%s: %zu events, %.3f s", trace.name.c_str(), trace.events.size(),
              static_cast<double>(trace.end_ns() - trace.begin_ns()) * 1e-9);
  if (trace.rank >= 0) std::printf(", rank %d of %d", trace.rank, trace.world_size);
  for (const st::TraceDevice& device : trace.devices) std::printf(", %s", device.name.c_str());
  std::printf("\n");
  if (timeline.steps()[0].number < 0) {
    std::printf("no steps are marked (ProfilerStep#n): the whole of it is taken\n");
    return;
  }
  int64_t sum = 0;
  for (const st::TraceStep& step : timeline.steps()) sum += step.end_ns - step.begin_ns;
  std::printf("%zu steps, %.3f ms each on average\n", timeline.steps().size(),
              milliseconds(sum) / static_cast<double>(timeline.steps().size()));
}

void print_device(const st::Trace& trace, const st::DeviceBusy& device, int64_t span) {
  const st::IdleTime& idle = device.idle;
  std::printf("\ndevice %" PRId64 ": busy %.1f %%, idle %.1f %%, of that while the host\n", device.device,
              percent(device.busy_ns, span), percent(idle.total_ns(), span));
  std::printf("  waited for data             %6.1f %%\n", percent(idle.data_wait_ns, span));
  std::printf("  waited for the device       %6.1f %%\n", percent(idle.synchronization_ns, span));
  std::printf("  was getting work under way  %6.1f %%\n", percent(idle.launch_ns, span));
  std::printf("  did what no event shows     %6.1f %%\n", percent(idle.no_event_ns, span));
  for (std::size_t i = 0; i < device.gaps.size() && i < 3; ++i) {
    const st::IdleGap& gap = device.gaps[i];
    std::printf("  gap of %.3f ms: %s\n", milliseconds(gap.end_ns - gap.begin_ns),
                gap.host_event == st::Timeline::none ? "no event on the host"
                                                     : trace.text(trace.events[gap.host_event].name).c_str());
  }
}

void print_busy(const st::Trace& trace, const st::Timeline& timeline) {
  const st::BusyTime busy = st::busy_time(timeline);
  const int64_t span = busy.end_ns - busy.begin_ns;
  for (const st::DeviceBusy& device : busy.devices) print_device(trace, device, span);
  std::printf("\nthreads busy at once, on average: %.2f\n", busy.cores_busy());
  for (std::size_t i = 0; i < busy.threads.size() && i < 4; ++i) {
    const st::ThreadBusy& thread = busy.threads[i];
    const st::TraceLane& lane = trace.lanes[thread.lane];
    std::printf("  thread %" PRId64 "%s%s: busy %.1f %%, waiting for data %.1f %%\n", lane.tid,
                lane.thread.empty() ? "" : " ", lane.thread.c_str(), percent(thread.busy_ns, span),
                percent(thread.data_wait_ns, span));
  }
}

void print_work(const st::Timeline& timeline) {
  const st::DeviceWork work = st::device_work(timeline);
  if (work.kernels > 0) {
    std::printf("\nkernels: %" PRId64 ", %.1f %% shorter than 10 us (%.1f %% of their time)", work.kernels,
                percent(work.small_kernels, work.kernels), percent(work.small_kernel_ns, work.kernel_ns));
    if (work.launched > 0) {
      std::printf("; %.1f %% were launched when their stream had nothing more to do",
                  percent(work.launched_late, work.launched));
    }
    std::printf("\n");
  }
  for (const st::CopyWork& copy : work.copies) {
    const char* const host = copy.host == st::CopyMemory::pageable ? ", pageable"
                             : copy.host == st::CopyMemory::pinned ? ", pinned"
                                                                   : "";
    std::printf("copies %s%s: %" PRId64 ", %.3f MB, %.3f ms, %.2f GB/s\n", copy.direction.c_str(), host, copy.count,
                static_cast<double>(copy.bytes) * 1e-6, milliseconds(copy.ns), copy.bytes_per_second() * 1e-9);
  }
  if (work.driver_allocations > 0) {
    std::printf("cudaMalloc and cudaFree: %" PRId64 ", %.3f ms\n", work.driver_allocations,
                milliseconds(work.driver_allocation_ns));
  }
}

void print_syncs(const st::Timeline& timeline) {
  const st::HostSyncs syncs = st::host_syncs(timeline);
  int64_t count = 0, ns = 0;
  for (const st::HostSync& row : syncs.rows) {
    count += row.count;
    ns += row.ns;
  }
  std::printf("\nwaits for the device, or values read on the host: %" PRId64 " (%.1f a step), %.3f ms\n", count,
              static_cast<double>(count) / static_cast<double>(syncs.steps.size()), milliseconds(ns));
  for (std::size_t i = 0; i < syncs.rows.size() && i < 5; ++i) {
    const st::HostSync& row = syncs.rows[i];
    std::printf("  %s%s%s: %" PRId64 ", %.3f ms\n", row.call.c_str(), row.caller.empty() ? "" : " in ",
                row.caller.c_str(), row.count, milliseconds(row.ns));
  }
}

void print_self_times(const st::Trace& trace, const st::Timeline& timeline, const Options& options) {
  const auto rows = st::self_times(timeline, {.by_shape = options.shapes, .python = options.python});
  int64_t sum = 0;
  for (const st::SelfTime& row : rows) sum += row.self_ns;
  std::printf("\n%10s %7s %10s %9s  %-11s name\n", "self ms", "", "total ms", "calls", "kind");
  for (std::size_t i = 0; i < rows.size() && i < options.top; ++i) {
    const st::SelfTime& row = rows[i];
    std::printf("%10.3f %5.1f %% %10.3f %9" PRId64 "  %-11s %.100s%s%.100s\n", milliseconds(row.self_ns),
                percent(row.self_ns, sum), milliseconds(row.total_ns), row.calls, kind_text(row.kind),
                trace.text(row.name).c_str(), row.shapes == 0 ? "" : " ", trace.text(row.shapes).c_str());
  }
}

void print_trace(const st::Trace& trace, const Options& options) {
  if (trace.events.empty()) {
    std::printf("%s: a trace without events\n", trace.name.c_str());
    return;
  }
  const st::Timeline timeline(trace);
  print_head(trace, timeline);
  print_busy(trace, timeline);
  print_work(timeline);
  print_syncs(timeline);
  print_self_times(trace, timeline, options);
}

bool is_folder(const std::string& path) {
  struct stat status;
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("What a profile of PyTorch's (Kineto, Chrome's trace format) says. Exit status 2: it cannot be read.",
               "saturate-trace");
  app.add_option("trace", options.path, "a trace (.json, .json.gz), or a folder with one a rank")->required();
  app.add_option("--top", options.top, "rows of the table of names")->capture_default_str();
  app.add_flag("--python", options.python, "frames of the Python stack in the table as well");
  app.add_flag("--shapes", options.shapes, "a row for each name and shapes of inputs");
  CLI11_PARSE(app, argc, argv);
  try {
    const st::ReadTraceOptions reading{.keep_python = options.python, .keep_flows = false};
    if (is_folder(options.path)) {
      bool first = true;
      for (const st::Trace& trace : st::read_traces(options.path, reading)) {
        if (!first) std::printf("\n");
        first = false;
        print_trace(trace, options);
      }
    } else {
      print_trace(st::read_trace(options.path, reading), options);
    }
  } catch (const st::Error& error) {
    std::fprintf(stderr, "saturate-trace: %s\n", error.what());
    return 2;
  }
}
