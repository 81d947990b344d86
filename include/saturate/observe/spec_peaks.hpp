// SPDX-License-Identifier: Apache-2.0
// What a GPU's maker says that it can do, shown beside what was measured (peaks.hpp):
//
//   if (const auto spec = st::spec_peak("NVIDIA H100 80GB HBM3")) std::cout << spec->flops("bfloat16").value();
//
// Dense numbers only: data sheets print those "with sparsity" next to them, twice as large, and a utilization that is
// computed from the wrong one is wrong by as much. A device that is not in the list is unknown; nothing is guessed from
// a part of its name.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace saturate {

/// FLOP/s of dense matrix products with float32 accumulation, on tensor cores where the device has any for that
/// precision; bytes/s of device memory. 0: the source does not say, or sources disagree.
struct SpecPeak {
  std::string_view name;  ///< as the driver says it, without "NVIDIA " or "Tesla " in front: "A100-SXM4-80GB"
  double float64 = 0, float32 = 0, tf32 = 0, bfloat16 = 0, float16 = 0;
  double memory_bandwidth = 0;
  std::string_view source;  ///< the document

  /// Nothing where the source has no number.
  std::optional<double> flops(std::string_view precision) const;
};

/// @param device_name the driver's ("Tesla T4", "NVIDIA L4"). Partitions of a device (MIG), variants for one customer
/// and for laptops have names of their own, and are unknown.
std::optional<SpecPeak> spec_peak(std::string_view device_name);

/// "989 TFLOP/s dense bfloat16 (NVIDIA H100 ... data sheet)", or "unknown".
std::string spec_text(std::string_view device_name, std::string_view precision);

/// All that are known.
std::span<const SpecPeak> spec_peaks();

}  // namespace saturate
