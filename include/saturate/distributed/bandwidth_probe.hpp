// SPDX-License-Identifier: Apache-2.0
// What all-reduce reaches between these ranks, by size, as nccl-tests measures it, and the link's α and β:
//
//   const auto probe = st::distributed::probe_all_reduce(group);
//   std::cout << probe.table();
//   probe.link                                        // for comm_report and the scaling model
#pragma once

#include "saturate/distributed/process_group.hpp"
#include "saturate/distributed/scaling_model.hpp"

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

namespace saturate::distributed {

struct ProbeOptions {
  /// Of the tensors, rounded down to whole elements; every rank gives the same.
  std::vector<int64_t> bytes = {4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20};
  int repeats = 9;  ///< of each size, of which the median counts
  int warmup = 2;   ///< more, that do not count
  c10::ScalarType dtype = c10::ScalarType::Float;

  /// @throws ConfigError no size, a size below one element, repeats below 1, warmup below 0, a dtype that is not added
  /// up (bool, complex, quantized).
  void validate() const;
};

struct ProbedSize {
  int64_t bytes = 0;
  double seconds = 0;              ///< median, of the slowest rank
  double algorithm_bandwidth = 0;  ///< bytes/s: bytes / seconds
  double bus_bandwidth = 0;  ///< bytes/s: 2 (n − 1) / n · bytes / seconds, comparable over n (nccl-tests' busbw)
};

struct AllReduceProbe {
  int ranks = 1;
  std::string backend;
  std::vector<ProbedSize> sizes;
  /// Such that a ring takes ring_cost(ranks).seconds(link, bytes): the mean bandwidth of sizes from a sixteenth of the
  /// largest on, without the latency, which is what is left of the smallest size.
  Link link;
  double worst_error = 0;  ///< of the fit: largest |predicted / measured − 1|

  /// Of the largest size.
  double bus_bandwidth() const { return sizes.empty() ? 0 : sizes.back().bus_bandwidth; }
  std::string table() const;
};

/// Called by every rank, with nothing else in flight. All ranks get the same numbers. With one rank there are no sizes,
/// and no link. @throws ConfigError options; on every rank, when they differ.
AllReduceProbe probe_all_reduce(const ProcessGroup& group, const ProbeOptions& options = {});

namespace detail {
/// α and β of a ring; sizes in increasing order.
Link fit_link(int ranks, const std::vector<ProbedSize>& sizes);
}  // namespace detail

}  // namespace saturate::distributed
