// SPDX-License-Identifier: Apache-2.0
// Traces of several ranks side by side: who lets the others wait.
//
//   const TraceStragglers found = trace_stragglers({&timeline0, &timeline1, &timeline2});
//   std::cout << found.verdict << '\n';   // "rank 2 holds the others up: last at 57 of 60 collectives ..."
#pragma once

#include "saturate/trace/timeline.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace saturate {

/// Of one rank, over all steps that every rank's trace has.
struct RankTime {
  int rank = 0;               ///< Trace::rank, or else the place among the traces
  int64_t step_ns = 0;        ///< sum of the steps
  int64_t compute_ns = 0;     ///< in which its device (without one: its threads) computed; see CommunicationSplit
  int64_t collective_ns = 0;  ///< sum over its collectives that have a partner in every trace
  int64_t waiting_ns = 0;     ///< of that, before the last rank had arrived
  int64_t last = 0;           ///< collectives at which it arrived last, and later than all others by the tolerance
  int64_t held_up_ns = 0;     ///< at these, how long the second last had waited for it
};

struct TraceStragglers {
  std::vector<RankTime> ranks;  ///< in the order of the traces
  int64_t steps = 0;            ///< that every trace has
  int64_t collectives = 0;      ///< compared
  int straggler = -1;           ///< the rank; -1: none
  std::string verdict;          ///< in words, with its numbers
};

struct TraceStragglersOptions {
  int64_t tolerance_ns = 10'000;  ///< arrivals closer than this are together
  /// A straggler is last at so many of the collectives, and costs at least so much of a step.
  double share_of_collectives = 0.5, share_of_step = 0.02;
};

/// The ranks' clocks need not agree: a collective ends everywhere at once, so the rank at which it took least came
/// last, and what it took longer elsewhere was waiting. Collectives are NCCL's kernels, or else Gloo's ranges, or else
/// operators of c10d; the i-th of a step belongs with the i-th of the others, as far as their names agree. Those of a
/// part of the ranks (Group size) are left out.
/// @throws ConfigError for fewer than two traces, a null one, or two of the same rank.
TraceStragglers trace_stragglers(const std::vector<const Timeline*>& timelines,
                                 const TraceStragglersOptions& options = {});

}  // namespace saturate
