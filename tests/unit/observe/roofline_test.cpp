// SPDX-License-Identifier: Apache-2.0
#include "saturate/observe/roofline.hpp"

#include "saturate/error.hpp"
#include "saturate/observe/peaks.hpp"
#include "saturate/observe/spec_peaks.hpp"

#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <limits>
#include <string>

namespace {

namespace st = saturate;
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;

// Ridge at 10 FLOP/byte in float32, 20 in bfloat16.
const st::Roofs roofs{"test", 10e9, {{"float32", 100e9}, {"bfloat16", 200e9}}};

st::OpWork op(const std::string& name, int64_t flops, int64_t bytes, double seconds,
              st::WorkPhase phase = st::WorkPhase::forward, const std::string& precision = "float32") {
  return {name, "[2]", phase, flops == 0 ? "" : precision, 1, flops, bytes, seconds};
}

std::size_t count_of(const std::string& text, const std::string& what) {
  std::size_t count = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

}  // namespace

TEST_CASE("roofline: below the ridge bandwidth bounds, above it the peak") {
  const auto roofline = st::make_roofline({op("low", 2'000'000, 1'000'000, 200e-6),
                                           op("high", 50'000'000, 1'000'000, 1e-3), op("copy", 0, 1'000'000, 125e-6)},
                                          roofs, 2e-3);
  REQUIRE(roofline.points.size() == 3);
  const auto& high = roofline.points[0];  // by time
  const auto& low = roofline.points[1];
  const auto& copy = roofline.points[2];
  CHECK(high.work.name == "high");
  CHECK(high.intensity == 50);
  CHECK(high.attainable.value() == Approx(100e9));
  CHECK(high.reached.value() == Approx(50e9));
  CHECK(high.share.value() == Approx(0.5));
  CHECK(high.bound == st::Bound::compute);
  CHECK(low.intensity == 2);
  CHECK(low.attainable.value() == Approx(20e9));
  CHECK(low.reached.value() == Approx(10e9));
  CHECK(low.share.value() == Approx(0.5));
  CHECK(low.bound == st::Bound::memory);
  CHECK(copy.intensity == 0);
  CHECK_FALSE(copy.reached);
  CHECK(copy.share.value() == Approx(0.8));  // 8 of 10 GB/s
  CHECK(copy.bound == st::Bound::memory);
  // 52 MFLOP: 520 us at the peak, 300 us for 3 MB.
  CHECK(roofline.step.bound == st::Bound::compute);
  CHECK(roofline.step.attainable.value() == Approx(100e9));
  CHECK(roofline.step.share.value() == Approx(0.26));
  CHECK(roofline.step.reached.value() == Approx(26e9));
}

TEST_CASE("roofline: MFU counts a recomputed forward once, HFU twice") {
  using enum st::WorkPhase;
  const auto roofline =
      st::make_roofline({op("mm", 10'000'000, 1, 1e-4, forward), op("mm", 20'000'000, 1, 2e-4, backward),
                         op("mm", 10'000'000, 1, 1e-4, recompute)},
                        roofs, 1e-3);
  CHECK(roofline.mfu().value() == Approx(0.3));  // 30 of the 100 MFLOP that fit into a millisecond
  CHECK(roofline.hfu().value() == Approx(0.4));
  CHECK_THAT(roofline.table(), ContainsSubstring("MFU 30 %, HFU 40 %"));
}

TEST_CASE("roofline: each precision has its own peak, and one that is not known makes the answer unknown") {
  using enum st::WorkPhase;
  const auto mixed =
      st::make_roofline({op("a", 10'000'000, 1, 1e-4), op("b", 20'000'000, 1, 1e-4, forward, "bfloat16")}, roofs, 1e-3);
  CHECK(mixed.mfu().value() == Approx(0.2));
  CHECK(mixed.step.attainable.value() == Approx(150e9));
  const auto unknown =
      st::make_roofline({op("a", 10'000'000, 1, 1e-4), op("c", 20'000'000, 1, 2e-4, forward, "float8")}, roofs, 1e-3);
  CHECK_FALSE(unknown.mfu());
  CHECK_FALSE(unknown.hfu());
  CHECK(unknown.points[0].bound == st::Bound::unknown);
  CHECK_FALSE(unknown.points[0].share);
  CHECK(unknown.points[1].share.value() == Approx(1));
  CHECK(unknown.step.bound == st::Bound::unknown);
  CHECK_THAT(unknown.table(), ContainsSubstring("MFU unknown, HFU unknown"));
}

TEST_CASE("roofline: from measured peaks, and from a data sheet") {
  st::Peaks peaks;
  peaks.machine = "here";
  peaks.memory_bandwidth = 5e9;
  peaks.gemm = {{"float32", 7e9, 512}};
  CHECK(st::Roofs::of(peaks).peak("float32").value() == 7e9);
  CHECK(st::Roofs::of(peaks).memory_bandwidth == 5e9);
  CHECK_FALSE(st::Roofs::of(peaks).peak("bfloat16"));
  const auto spec = st::Roofs::of(st::spec_peak("NVIDIA A100-SXM4-40GB").value());
  CHECK(spec.peak("bfloat16").value() == 312e12);
  CHECK_THAT(spec.source, ContainsSubstring("data sheet"));
  // 312 TFLOP in a second are 100 %, not the 50 % that the number with sparsity would say.
  const auto full =
      st::make_roofline({op("mm", 312'000'000'000'000, 1, 1, st::WorkPhase::forward, "bfloat16")}, spec, 1);
  CHECK(full.mfu().value() == Approx(1));
}

TEST_CASE("roofline: what cannot be is refused") {
  CHECK_THROWS_AS(st::make_roofline({}, roofs, 0), st::ConfigError);
  CHECK_THROWS_AS(st::make_roofline({}, roofs, std::numeric_limits<double>::quiet_NaN()), st::ConfigError);
  CHECK_THROWS_AS(st::make_roofline({op("a", -1, 1, 1)}, roofs, 1), st::ConfigError);
  CHECK_THROWS_AS(st::make_roofline({op("a", 1, 1, -1)}, roofs, 1), st::ConfigError);
  const auto nothing = st::make_roofline({}, roofs, 1);
  CHECK(nothing.mfu().value() == 0);
  CHECK(nothing.step.bound == st::Bound::unknown);
  CHECK_THAT(nothing.to_svg(), ContainsSubstring("</svg>"));
}

TEST_CASE("roofline: the chart has a roof for each precision in use and a mark for each operator with products") {
  using enum st::WorkPhase;
  const auto roofline = st::make_roofline(
      {op("aten::mm<&>", 2'000'000, 1'000'000, 2e-4), op("aten::addmm", 50'000'000, 1'000'000, 1e-3, backward),
       op("aten::copy_", 0, 1'000'000, 1e-4)},
      roofs, 2e-3);
  const std::string svg = roofline.to_svg();
  CHECK(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"rf\""));
  CHECK(count_of(svg, "class=\"rf-point") == 2);
  CHECK(count_of(svg, "class=\"rf-roof\"") == 2);  // sloped and level, of float32 alone
  CHECK(count_of(svg, "rf-step\"") == 1);
  CHECK_THAT(svg, ContainsSubstring("aten::mm&lt;&amp;&gt;") && ContainsSubstring("prefers-color-scheme:dark"));
  CHECK(count_of(svg, "http") == 1);  // the namespace: nothing is loaded
  CHECK(count_of(svg, "nan") + count_of(svg, "inf") == 0);
}

TEST_CASE("roofline: the table shows the longest operators and says how many it leaves out") {
  std::vector<st::OpWork> work;
  for (int i = 1; i <= 5; ++i) work.push_back(op("op" + std::to_string(i), 1000, 1000, i * 1e-4));
  const std::string table = st::make_roofline(work, roofs, 1e-2).table(2);
  CHECK_THAT(table, ContainsSubstring("op5") && ContainsSubstring("op4") && ContainsSubstring("and 3 more"));
  CHECK(table.find("op3") == std::string::npos);
}
