// SPDX-License-Identifier: Apache-2.0
// What this machine can do at most, measured and not looked up: the roofs that a step is compared with.
//
//   const st::Peaks peaks = st::measure_peaks();               // once per machine: seconds; from then on read from a
//   file std::cout << peaks.table(); peaks.flops("float32"), peaks.memory_bandwidth             // FLOP/s, bytes/s
//
// docs/roofline.md says how each is measured.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace saturate {

namespace distributed {
class ProcessGroup;
struct ProbeOptions;
}  // namespace distributed

struct PeakOptions {
  c10::Device device = c10::kCPU;
  /// Of "float64", "float32", "tf32" (on CUDA), "bfloat16", "float16"; empty: all that the device has.
  std::vector<std::string> precisions = {};
  double seconds = 6;        ///< to spend on all measurements together; about, and at least three runs of each
  bool use_cache = true;     ///< false: measures, and leaves the file as it is
  std::string cache_folder;  ///< empty: $XDG_CACHE_HOME/saturate, else $HOME/.cache/saturate

  /// @throws ConfigError a precision that is not known or not of this device, seconds that are not above 0, a device
  /// that is neither the CPU nor CUDA, or is not there.
  void validate() const;
};

/// The fastest square matrix product of one precision: 2 n³ floating point operations.
struct GemmPeak {
  std::string precision;  ///< "float32", "tf32", ...
  double flops = 0;       ///< FLOP/s
  int64_t size = 0;       ///< n that reached it
  bool operator==(const GemmPeak&) const = default;
};

struct Peaks {
  std::string machine;  ///< what the numbers hold for: CPU model, cores, threads (or GPU), LibTorch's version
  std::string device;   ///< "cpu", "cuda:0"
  std::vector<GemmPeak> gemm;
  /// bytes/s of a triad a[i] = b[i] + s * c[i] over arrays that fit into no cache: two are read, one is written, as
  /// STREAM counts it. What only reads, or writes past the caches, can be faster by up to a third on a CPU.
  double memory_bandwidth = 0;
  double host_to_device_pinned = 0;     ///< bytes/s; 0 on the CPU
  double host_to_device_pageable = 0;   ///< bytes/s; 0 on the CPU
  double all_reduce_bus_bandwidth = 0;  ///< bytes/s (nccl-tests' busbw); 0 unless add_all_reduce() measured it
  int ranks = 1;                        ///< that all-reduce was measured over
  bool from_cache = false;
  std::vector<std::string> notes;  ///< what was not measured, and why; a file that could not be read or written

  /// FLOP/s of a precision's matrix products; nothing where it was not measured.
  std::optional<double> flops(std::string_view precision) const;
  /// Several lines.
  std::string table() const;
};

/// Best of repeated short runs, after a warm-up, at the best of growing sizes; the quantities take turns. The cache
/// file is keyed by `Peaks::machine`: other threads, another GPU or LibTorch measure anew, and so does a file that is
/// damaged or lacks a precision, with a note. Run it with nothing else running. @throws ConfigError options.
Peaks measure_peaks(const PeakOptions& options = {});

/// Ranks take turns, so that those of one machine do not measure each other. Called by every rank.
/// @throws ConfigError on every rank, naming the first one that could not measure.
Peaks measure_peaks(const distributed::ProcessGroup& group, const PeakOptions& options = {});

/// Measures all-reduce between the ranks (bandwidth_probe.hpp), called by every rank; not cached: it belongs to the
/// job, not to the machine. @throws ConfigError options.
void add_all_reduce(Peaks& peaks, const distributed::ProcessGroup& group);
void add_all_reduce(Peaks& peaks, const distributed::ProcessGroup& group, const distributed::ProbeOptions& options);

namespace detail {
/// Where the peaks of a machine are kept. @throws ConfigError no folder is given and the environment names none.
std::string peaks_file(const std::string& folder, const std::string& machine);
}  // namespace detail

}  // namespace saturate
