// SPDX-License-Identifier: Apache-2.0
// What memory costs in time: the workload's step with more and more of its forward recomputed in backward, each beside
// the baseline.
#pragma once

#include "saturate/audit/judge.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace saturate::audit {

/// One way to need less memory. No tactic: it is never kept or rejected, and makes nothing faster.
struct MemoryPoint {
  std::string label, how_to_apply;  ///< "recompute every(2)", "st::Recompute::every(2)"
  std::vector<AbRound> rounds;      ///< in turns with the baseline, both over the same samples
  std::string error;                ///< why it does not count; empty: it does

  double samples_per_second() const;  ///< median over the rounds; 0 without
  /// Highest RoundResult::peak_bytes of the timed steps: what they allocate (activations, gradients, batches,
  /// temporaries), without what is older than the round (parameters, the optimizer's state). 0: unknown.
  int64_t peak_bytes() const;
  int64_t baseline_peak_bytes() const;  ///< of the rounds beside it
  double speed() const;                 ///< median ratio of samples per second to the baseline's; 0 without rounds
  Interval speed_range() const;         ///< lowest and highest ratio of the rounds; 0 to 0 without
  double memory() const;                ///< peak_bytes() / baseline_peak_bytes(); 0: unknown
  bool counts() const;                  ///< both are known, and nothing is wrong
};

/// The points that no other one, nor the baseline, beats in both memory and speed; the least memory comes last.
std::vector<const MemoryPoint*> memory_front(const std::vector<MemoryPoint>& curve);

/// Of the front, the point that frees at least a tenth and has the least memory times time: the most samples a second
/// for each byte. nullptr when there is none.
const MemoryPoint* best_trade(const std::vector<MemoryPoint>& curve);

/// "recompute every(2): 0.54x memory at 0.90x speed (0.88 to 0.93)", or why that is not known.
std::string to_string(const MemoryPoint& point);

/// One sentence about best_trade(); empty without one.
std::string memory_advice(const std::vector<MemoryPoint>& curve);

}  // namespace saturate::audit
