// SPDX-License-Identifier: Apache-2.0
// What more ranks would be worth, on paper: the α–β model of a link (Hockney 1994), the costs of an all-reduce by
// algorithm, and the efficiency of data parallel training that follows.
//
//   const st::distributed::Workload work{.compute = 0.120, .hideable = 0.070, .bytes = 33.6e6, .buckets = 7};
//   for (const auto& point : st::distributed::scaling(work, st::distributed::ring({5e-6, 12e9}), {2, 64, 4096})) ...
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace saturate::distributed {

/// A message of m bytes takes latency + m / bandwidth (R. Hockney, Parallel Computing 20, 1994). Reducing what has
/// arrived is part of the bandwidth.
struct Link {
  double latency = 0;    ///< α, seconds
  double bandwidth = 0;  ///< β, bytes/s

  /// @throws ConfigError a latency below 0, a bandwidth that is not positive, or one that is not finite.
  void validate() const;
};

/// Messages one after the other, and what part of the bytes crosses a rank's link: seconds = rounds α + factor bytes/β.
struct AllReduceCost {
  double rounds = 0;
  double factor = 0;
  double seconds(const Link& link, double bytes) const {
    return rounds * link.latency + (rounds == 0 ? 0 : factor * bytes / link.bandwidth);
  }
};

/// 2 (n − 1) messages of bytes / n (Patarasuk and Yuan, JPDC 69, 2009): Gloo's, and NCCL's for large tensors.
AllReduceCost ring_cost(int64_t ranks);
/// Reduce-scatter by halving and all-gather by doubling: 2 ⌈log2 n⌉ messages, as many bytes as the ring (Rabenseifner;
/// Thakur, Rabenseifner and Gropp, IJHPCA 19, 2005, section 4.5). Exact where n is a power of two.
AllReduceCost halving_doubling_cost(int64_t ranks);
/// Reduce to one rank and broadcast along binomial trees: 2 ⌈log2 n⌉ messages of all bytes (Thakur et al., sections 4.2
/// and 4.4). For small tensors; NCCL's trees are pipelined, and cost no more than about 2 ⌈log2 n⌉ α + 2 bytes / β.
AllReduceCost tree_cost(int64_t ranks);

/// Seconds of an all-reduce of `bytes` over `ranks`.
using AllReduceTime = std::function<double(int64_t ranks, double bytes)>;
/// @throws ConfigError the link. The functions throw it for ranks below 1.
AllReduceTime ring(Link link);
AllReduceTime halving_doubling(Link link);
AllReduceTime tree(Link link);
/// Nodes of `ranks_per_node`: reduce-scatter within each, a ring over nodes, all-gather within each.
/// `network.bandwidth` is a node's, which its ranks share. Fewer ranks than a node has are a ring inside it.
/// @throws ConfigError links, or ranks_per_node below 1. The function throws it for ranks that do not fill the nodes.
AllReduceTime hierarchical(Link inside, Link network, int64_t ranks_per_node);

/// A rank's step, whatever the number of ranks is: weak scaling, where every rank keeps its batch.
struct Workload {
  double compute = 0;   ///< seconds of a step without communication
  double hideable = 0;  ///< seconds of it between the first bucket's launch and the end of backward
  double bytes = 0;     ///< that a rank reduces in a step, as its hook sends them
  int64_t buckets = 1;  ///< of equal size; the last is launched when backward ends, and cannot be hidden

  /// @throws ConfigError a time or size below 0 or not finite, more hideable than compute, buckets below 1.
  void validate() const;
};

struct ScalingPoint {
  int64_t ranks = 1;
  double communication = 0;  ///< seconds a step
  double exposed = 0;     ///< seconds of it that the step is longer for: max(communication − hideable, last bucket)
  double step = 0;        ///< seconds
  double efficiency = 1;  ///< compute / step
  double speedup = 1;     ///< ranks · efficiency
};

/// Nothing but links is in it: no stragglers, no contention between jobs, no slower convergence of larger batches.
/// @throws ConfigError the workload, or ranks below 1.
std::vector<ScalingPoint> scaling(const Workload& work, const AllReduceTime& all_reduce,
                                  const std::vector<int64_t>& ranks);
/// The same as lines of text.
std::string scaling_table(const std::vector<ScalingPoint>& points);

}  // namespace saturate::distributed
