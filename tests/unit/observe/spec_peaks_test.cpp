// SPDX-License-Identifier: Apache-2.0
#include "saturate/observe/spec_peaks.hpp"

#include <catch2/catch_test_macros.hpp>

#include <set>
#include <string>

namespace st = saturate;

TEST_CASE("spec_peaks: dense numbers under the driver's names, with and without the maker's") {
  CHECK(st::spec_peak("NVIDIA A100-SXM4-80GB").value().bfloat16 == 312e12);  // 624 is with sparsity
  CHECK(st::spec_peak("A100-SXM4-80GB").value().tf32 == 156e12);
  CHECK(st::spec_peak("NVIDIA H100 80GB HBM3").value().bfloat16 == 989.5e12);
  CHECK(st::spec_peak("NVIDIA H100 PCIe").value().bfloat16 == 756.5e12);
  CHECK(st::spec_peak("Tesla T4").value().float16 == 65e12);
  CHECK(st::spec_peak("NVIDIA L4").value().flops("bfloat16") == 121e12);
  CHECK(st::spec_text("NVIDIA A100 80GB PCIe", "bfloat16") ==
        "312 TFLOP/s dense bfloat16 (NVIDIA A100 Tensor Core GPU data sheet)");
}

TEST_CASE("spec_peaks: what is not in the list is unknown, however much its name resembles one") {
  for (const char* name :
       {"", "NVIDIA", "NVIDIA A10G", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA H100 NVL", "NVIDIA L40",
        "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D", "NVIDIA A800-SXM4-80GB", "a100-sxm4-80gb"}) {
    CAPTURE(name);
    CHECK_FALSE(st::spec_peak(name));
    CHECK(st::spec_text(name, "bfloat16") == "unknown");
  }
}

TEST_CASE("spec_peaks: a precision that the device does not have is unknown too") {
  CHECK_FALSE(st::spec_peak("Tesla V100-SXM2-16GB").value().flops("bfloat16"));
  CHECK_FALSE(st::spec_peak("Tesla T4").value().flops("tf32"));
  CHECK_FALSE(st::spec_peak("NVIDIA H200").value().flops("float8"));
  CHECK(st::spec_text("Tesla T4", "tf32") == "unknown");
}

TEST_CASE("spec_peaks: every row names its source, once, and is in order") {
  std::set<std::string> names;
  for (const st::SpecPeak& spec : st::spec_peaks()) {
    CAPTURE(spec.name);
    CHECK(names.insert(std::string(spec.name)).second);
    CHECK_FALSE(spec.source.empty());
    CHECK((spec.tf32 == 0 || spec.tf32 <= 0.51 * spec.bfloat16));  // with twice the bits, half the rate (and roundings)
    CHECK((spec.bfloat16 == 0 || spec.bfloat16 == spec.float16));
    CHECK(st::spec_peak("NVIDIA " + std::string(spec.name)).has_value());
  }
}
