// SPDX-License-Identifier: Apache-2.0
// How busy the machine is: a device with kernels and copies, or the CPU's threads; and what the host did while a device
// had nothing to do.
#pragma once

#include "saturate/trace/timeline.hpp"

#include <cstdint>
#include <vector>

namespace saturate {

/// What the thread that trains did while the device was idle. The parts add up to the idle time exactly. Where it did
/// nothing that the trace shows, threads that launch as well (autograd's, of a backward pass on a GPU) answer for it.
struct IdleTime {
  int64_t data_wait_ns = 0;        ///< in a range or frame that waits for the next batch
  int64_t synchronization_ns = 0;  ///< in a call that waits for the device, or reads a value from it
  int64_t launch_ns = 0;           ///< in operators and calls that get the next work under way: the host is too slow
  int64_t no_event_ns = 0;         ///< in nothing that the trace shows
  int64_t total_ns() const { return data_wait_ns + synchronization_ns + launch_ns + no_event_ns; }
};

/// A time in which a device does nothing.
struct IdleGap {
  int64_t begin_ns = 0, end_ns = 0;
  uint32_t host_event = Timeline::none;  ///< what took most of it on the host: index into Trace::events
  IdleTime idle;                         ///< of this gap
};

struct DeviceBusy {
  int64_t device = 0;   ///< index of the device: TraceLane::pid
  int64_t busy_ns = 0;  ///< some kernel, copy or memset runs, on whatever stream
  IdleTime idle;
  std::vector<IdleGap> gaps;  ///< the longest first, at most BusyOptions::gaps
};

struct ThreadBusy {
  uint32_t lane = 0;
  int64_t busy_ns = 0;       ///< in any event
  int64_t data_wait_ns = 0;  ///< of it, waiting for data
};

struct BusyTime {
  int64_t begin_ns = 0, end_ns = 0;
  std::vector<DeviceBusy> devices;  ///< by index; none in a trace of the CPU only
  std::vector<ThreadBusy> threads;  ///< the one that trains first, then the busiest
  double cores_busy() const;        ///< threads busy at once, on average
};

struct BusyOptions {
  std::size_t gaps = 10;
};

/// Of [begin_ns, end_ns), from the first step's begin to the last one's end when not given.
BusyTime busy_time(const Timeline& timeline, const BusyOptions& options = {});
BusyTime busy_time(const Timeline& timeline, int64_t begin_ns, int64_t end_ns, const BusyOptions& options = {});

/// Of each step, parallel to Timeline::steps.
std::vector<BusyTime> busy_time_of_steps(const Timeline& timeline, const BusyOptions& options = {});

}  // namespace saturate
