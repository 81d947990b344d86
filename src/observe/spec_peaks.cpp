// SPDX-License-Identifier: Apache-2.0
#include "saturate/observe/spec_peaks.hpp"

#include "../audit/text.hpp"

#include <algorithm>
#include <array>

namespace saturate {
namespace {

// Where a document prints only the number with sparsity, its footnote says that half of it holds without: written as
// halves here.
constexpr std::string_view v100 = "NVIDIA V100 Tensor Core GPU data sheet";
constexpr std::string_view a100 = "NVIDIA A100 Tensor Core GPU data sheet";
constexpr std::string_view h100 = "NVIDIA H100 Tensor Core GPU data sheet";
constexpr std::string_view h200 = "NVIDIA H200 Tensor Core GPU data sheet";
constexpr std::string_view l4 = "NVIDIA L4 Tensor Core GPU data sheet";
constexpr std::string_view l40s = "NVIDIA L40S data sheet";
constexpr std::string_view a10 = "NVIDIA A10 Tensor Core GPU data sheet";
constexpr std::string_view t4 = "NVIDIA T4 Tensor Core GPU data sheet";
constexpr std::string_view ga102 = "NVIDIA Ampere GA102 GPU Architecture white paper, appendix A";
constexpr std::string_view ada = "NVIDIA Ada GPU Architecture white paper, appendix A";
constexpr std::string_view b200 = "NVIDIA HGX B200 data sheet";

constexpr SpecPeak a100_with(std::string_view name, double memory_bandwidth) {
  return {name, 19.5e12, 19.5e12, 156e12, 312e12, 312e12, memory_bandwidth, a100};
}

constexpr std::array specs = {
    // name, float64, float32, tf32, bfloat16, float16, memory, source
    SpecPeak{"V100-SXM2-16GB", 7.8e12, 15.7e12, 0, 0, 125e12, 900e9, v100},
    SpecPeak{"V100-SXM2-32GB", 7.8e12, 15.7e12, 0, 0, 125e12, 900e9, v100},
    SpecPeak{"V100-PCIE-16GB", 7e12, 14e12, 0, 0, 112e12, 900e9, v100},
    SpecPeak{"V100-PCIE-32GB", 7e12, 14e12, 0, 0, 112e12, 900e9, v100},
    a100_with("A100-SXM4-40GB", 1555e9),
    a100_with("A100-PCIE-40GB", 1555e9),
    a100_with("A100-SXM4-80GB", 2039e9),
    a100_with("A100 80GB PCIe", 1935e9),
    SpecPeak{"H100 80GB HBM3", 67e12, 67e12, 989e12 / 2, 1979e12 / 2, 1979e12 / 2, 3.35e12, h100},
    SpecPeak{"H100 PCIe", 51e12, 51e12, 756e12 / 2, 1513e12 / 2, 1513e12 / 2, 2e12, h100},
    SpecPeak{"H200", 67e12, 67e12, 989e12 / 2, 1979e12 / 2, 1979e12 / 2, 4.8e12, h200},
    SpecPeak{"L4", 0, 30.3e12, 120e12 / 2, 242e12 / 2, 242e12 / 2, 300e9, l4},
    SpecPeak{"L40S", 0, 91.6e12, 183e12, 362.05e12, 362.05e12, 864e9, l40s},
    SpecPeak{"A10", 0, 31.2e12, 62.5e12, 125e12, 125e12, 600e9, a10},
    SpecPeak{"T4", 0, 8.1e12, 0, 0, 65e12, 0, t4},
    // GeForce tensor cores run at half rate when they accumulate in float32, as LibTorch's products do.
    SpecPeak{"GeForce RTX 3090", 0, 35.6e12, 35.6e12, 71e12, 71e12, 936e9, ga102},
    SpecPeak{"GeForce RTX 4090", 0, 82.6e12, 82.6e12, 165.2e12, 165.2e12, 1008e9, ada},
    SpecPeak{"B200", 0, 0, 0, 4500e12 / 2, 4500e12 / 2, 0, b200},
};

std::string_view without_prefix(std::string_view name) {
  for (const std::string_view prefix : {"NVIDIA ", "Tesla "}) {
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  }
  return name;
}

}  // namespace

std::optional<double> SpecPeak::flops(std::string_view precision) const {
  const double value = precision == "float64"    ? float64
                       : precision == "float32"  ? float32
                       : precision == "tf32"     ? tf32
                       : precision == "bfloat16" ? bfloat16
                       : precision == "float16"  ? float16
                                                 : 0;
  return value > 0 ? std::optional(value) : std::nullopt;
}

std::optional<SpecPeak> spec_peak(std::string_view device_name) {
  const std::string_view name = without_prefix(device_name);
  const auto* found = std::find_if(specs.begin(), specs.end(), [&](const SpecPeak& spec) { return spec.name == name; });
  return found == specs.end() ? std::nullopt : std::optional(*found);
}

std::string spec_text(std::string_view device_name, std::string_view precision) {
  const auto spec = spec_peak(device_name);
  const auto flops = spec ? spec->flops(precision) : std::nullopt;
  if (!flops) return "unknown";
  return audit::text::number(*flops / 1e12) + " TFLOP/s dense " + std::string(precision) + " (" +
         std::string(spec->source) + ")";
}

std::span<const SpecPeak> spec_peaks() { return specs; }

}  // namespace saturate
