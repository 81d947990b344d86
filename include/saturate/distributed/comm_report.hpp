// SPDX-License-Identifier: Apache-2.0
// How much of communication backward hides, what the rest costs, and what would make it less:
//
//   const auto probe = st::distributed::probe_all_reduce(group);           // once, before training
//   ...                                                                    // train with a MeasuredHook
//   const auto report = st::distributed::comm_report(*hook, probe.link);
//   std::cout << report.text();      // communication-bound: 61 % of the step is exposed all-reduce; 16-bit compression
//                                    // (Bf16Compress, Fp16Compress) would make it 34 %
#pragma once

#include "saturate/distributed/measured_hook.hpp"
#include "saturate/distributed/scaling_model.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace saturate::distributed {

/// A bucket, medians over windows; seconds from the beginning of backward.
struct BucketSummary {
  BucketTimes times;
  double hidden = 0;  ///< share of launch to done that lies before the end of backward
};

/// What the step would be if a hook sent other bytes, by the α–β model.
struct CommPrediction {
  std::string change;  ///< "16-bit compression (Bf16Compress, Fp16Compress)"
  int64_t bytes = 0;
  double communication = 0;  ///< seconds
  double exposed = 0;        ///< seconds
  double share = 0;          ///< of the step that it would be
};

/// One rank's windows, by their medians. A rank that waits for a slower one counts that as communication.
struct CommReport {
  std::string hook;
  int rank = 0, ranks = 1;
  int64_t windows = 0;  ///< that it is made of
  bool begin_is_known = false;
  double step = 0;      ///< seconds from window to window; 0: fewer than two windows followed each other
  double backward = 0;  ///< seconds to the last gradient
  double communication = 0, overlapped = 0, exposed = 0;  ///< seconds; the first is the sum of the others
  double inside_hook = 0;                                 ///< seconds of exposed that backward spent in the hook
  int64_t bytes = 0, gradient_bytes = 0;
  double algorithm_bandwidth = 0;  ///< bytes/s: bytes / communication
  double bus_bandwidth = 0;        ///< bytes/s: 2 (n − 1) / n of that; a hook that gathers sends other amounts
  double bound_share = 0.1;        ///< CommReportOptions
  std::optional<Link> link;        ///< as measured by the probe
  std::vector<BucketSummary> buckets;
  std::vector<CommPrediction> predictions;  ///< the first is the hook as it is: how well the model holds here

  /// Exposed communication as a share of the step (without a step: of backward and what follows it).
  double exposed_share() const;
  /// One sentence, or two.
  std::string verdict() const;
  /// Verdict, sums, buckets and predictions as lines of text.
  std::string text() const;
};

struct CommReportOptions {
  int64_t skip = 2;          ///< first windows of those kept that do not count: buckets are made again after one
  double bound_share = 0.1;  ///< exposed share of the step from which it is communication-bound
  /// @throws ConfigError skip below 0, or a share outside 0 to 1.
  void validate() const;
};

/// @param link of a probe; without one, predictions are made of the bandwidth that the windows reached, without
/// latency.
/// @throws ConfigError options or link. @throws StateError no window is left to report.
CommReport comm_report(const MeasuredHook& hook, std::optional<Link> link = {}, const CommReportOptions& options = {});
/// The same of windows that were measured before.
CommReport comm_report(const std::vector<WindowTimes>& windows, const std::string& hook, int rank, int ranks,
                       std::optional<Link> link = {}, const CommReportOptions& options = {});

/// A Chrome trace (chrome://tracing, ui.perfetto.dev): backward, the hook's calls and one row a bucket. Those of
/// several ranks can be joined: a rank is a process of the trace. Each rank's clock begins with its own first window.
std::string comm_trace(const std::vector<WindowTimes>& windows, const std::string& hook, int rank);
/// @throws Error the file cannot be written.
void write_comm_trace(const std::string& path, const MeasuredHook& hook);

namespace detail {
/// Buckets of `bytes`, launched as measured, one after the other over a link; @return when the last is done.
double pipeline_end(const std::vector<BucketSummary>& buckets, const std::vector<double>& bytes, int ranks,
                    const Link& link, double* communication);
}  // namespace detail

}  // namespace saturate::distributed
