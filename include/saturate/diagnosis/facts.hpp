// SPDX-License-Identifier: Apache-2.0
// What is known about a step, as plain numbers: what a diagnosis looks at.
//
//   st::Facts facts{.devices = 1, .data_wait_share = 0.2};      // what was measured, from wherever
//   facts.compute_share = reached_flops / peak_flops;
//   std::cout << st::diagnose(facts).text();                    // diagnose.hpp
//
// A number that nobody gave is unknown, and never taken for 0.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace saturate {

/// Shares are in [0, 1], of the step's time where nothing else is said. all_facts() describes each.
struct Facts {
  // The step.
  std::optional<double> steps, step_seconds, samples_per_step, training;
  // The device, or the CPU where there is none.
  std::optional<double> devices, busy_share, kernels_per_step, small_kernel_share, launch_bound_share;
  std::optional<double> late_launch_share, own_code_share, host_syncs_per_step, sync_stall_share;
  std::optional<double> pageable_copy_share, driver_allocations_per_step, driver_allocation_share, allocator_retries;
  // Data.
  std::optional<double> data_wait_share, loader_ceiling_ratio;
  // Arithmetic.
  std::optional<double> flops_per_second, compute_share, bandwidth_share, fp32_gemm_share, low_precision_speedup;
  std::optional<double> layout_conversion_share, dtype_conversion_share;
  std::optional<double> optimizer_share, optimizer_ops_per_parameter;
  // Memory and numbers.
  std::optional<double> memory_peak_bytes, memory_peak_share, sixteen_bit, nonfinite_share;
  // Ranks.
  std::optional<double> ranks, exposed_communication_share, communication_overlap_share, communication_bytes;
  std::optional<double> collectives_per_step, bytes_per_collective, bus_bandwidth_share, scaling_efficiency;
  std::optional<double> straggler_share;
  // Threads of the CPU.
  std::optional<double> cores, intra_op_threads, threads_per_core, runnable_per_core;
  std::optional<double> involuntary_switches_per_second, small_op_share;

  /// More about a number, by its name: {"host_syncs_per_step", "most by aten::item in logging"}.
  std::map<std::string, std::string, std::less<>> remarks;
  std::string device;                ///< "NVIDIA H100", "cpu"; empty: not told
  std::string precision;             ///< "float32", "bfloat16": that of most matrix products; empty: not told
  std::vector<std::string> sources;  ///< what the numbers were taken from: "trace rank0.json", "measured peaks"

  bool operator==(const Facts&) const = default;

  /// @throws ConfigError a number that is not finite or below 0, a share above 1 (2, where it is one of
  /// something measured).
  void validate() const;
  /// Takes what `other` knows, also where this knows something else.
  void take(const Facts& other);
};

enum class FactUnit {
  count,
  share,          ///< in [0, 1]
  share_of_peak,  ///< of something measured, which may be exceeded a little
  ratio,
  seconds,
  bytes,
  per_second,
  flops_per_second,
  yes_or_no,  ///< 1 or 0
};

using FactMember = std::optional<double> Facts::*;

struct FactInfo {
  std::string_view name;
  FactMember member;
  FactUnit unit;
  std::string_view meaning;
  /// Where it usually comes from: "trace", "measured peaks", "memory report", "loader ceiling", ...
  std::string_view source;
};

/// Every number of Facts, in their order.
std::span<const FactInfo> all_facts();
/// @throws ConfigError no such number.
const FactInfo& fact_info(FactMember member);

/// "12.5 %", "3.4 ms", "1.2 GB/s", "0.8 x".
std::string in_words(double value, FactUnit unit);

}  // namespace saturate
