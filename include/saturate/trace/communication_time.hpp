// SPDX-License-Identifier: Apache-2.0
// What talking with the other ranks costs: how long it takes, how much of that hides behind computing, and how fast it
// is.
//
//   const CommunicationTime communication = communication_time(timeline);
//   std::cout << communication.total.exposed_ns() << " ns in which nothing else ran\n";
#pragma once

#include "saturate/trace/timeline.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace saturate {

/// Of one step, or of all. On a machine with several devices in one trace: the sum over them.
struct CommunicationSplit {
  int64_t communication_ns = 0;  ///< some collective runs
  int64_t compute_ns = 0;        ///< some kernel that is none runs; in a trace of the CPU: some operator that is none
  int64_t overlapped_ns = 0;     ///< both
  /// Of communication_ns: begun when the step's backward pass had done its last piece of work. A reduction that
  /// overlaps with backward leaves at most its last bucket there.
  int64_t after_backward_ns = 0;
  int64_t exposed_ns() const { return communication_ns - overlapped_ns; }
};

/// All calls of one collective.
struct CollectiveTime {
  std::string name;  ///< "allreduce", "allgather", "reducescatter", "broadcast", "reduce", "alltoall", "sendrecv", ...
  int64_t count = 0;
  int64_t ns = 0;  ///< sum over calls, and in it the wait for the last rank to arrive
  /// Of the calls whose size the trace has. The size is that of nccl-tests: of an allgather the gathered tensor, of a
  /// reducescatter the whole one, of the others what each rank has.
  int64_t bytes = 0, sized_ns = 0;
  double bus_bytes = 0;                 ///< what went over the slowest link: bytes times the factor of bus_factor()
  double bus_bytes_per_second() const;  ///< bus bandwidth as nccl-tests define it; 0: no size is known
};

struct CommunicationTime {
  CommunicationSplit total;
  std::vector<CommunicationSplit> steps;    ///< parallel to Timeline::steps
  std::vector<CollectiveTime> collectives;  ///< in the steps, the longest first
};

/// Communication is: kernels of NCCL and RCCL, Gloo's ranges (gloo:all_reduce), and where neither is in the trace,
/// operators of c10d (c10d::allreduce_). Sizes come from what NCCL's kernels tell, and from the shapes of Gloo's
/// ranges, when the profile has them (record_shapes); the number of ranks from the group's size, or else
/// Trace::world_size. The backward pass is the ranges named "backward" and autograd's operators, and the kernels that
/// these launch.
CommunicationTime communication_time(const Timeline& timeline);

/// Bus bytes per byte of a collective over n ranks, from nccl-tests' PERFORMANCE.md: allreduce 2(n-1)/n; allgather,
/// reducescatter and alltoall (n-1)/n; 1 for the others, and for n < 2.
double bus_factor(const std::string& collective, int64_t ranks);

}  // namespace saturate
