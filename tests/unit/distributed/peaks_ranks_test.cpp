// SPDX-License-Identifier: Apache-2.0
#include "distributed_support.hpp"
#include "saturate/distributed/bandwidth_probe.hpp"
#include "saturate/error.hpp"
#include "saturate/observe/peaks.hpp"

#include <catch2/catch_test_macros.hpp>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

namespace st = saturate;
namespace dist = st::distributed;
using support::RankChecks;

st::PeakOptions quick_peaks(const std::string& folder) {
  return {.precisions = {"float32"}, .seconds = 0.05, .cache_folder = folder};
}

const support::RankEntry peaks_in_turns("peaks", [](const dist::ProcessGroup& group, RankChecks& check) {
  char name[] = "/tmp/saturate-peaks-XXXXXX";
  const std::string folder = group.gather_text(group.rank() == 0 ? ::mkdtemp(name) : "").front();
  st::Peaks peaks = st::measure_peaks(group, quick_peaks(folder));
  check(peaks.from_cache == (group.rank() > 0), "the first rank measures, the others read its file");
  check(peaks.all_reduce_bus_bandwidth == 0 && peaks.ranks == 1, "all-reduce before it was measured");
  st::add_all_reduce(peaks, group, {.bytes = {64 << 10, 4096}, .repeats = 3, .warmup = 1});
  check(peaks.ranks == group.world_size() && peaks.all_reduce_bus_bandwidth > 0, "no all-reduce");
  const auto texts = group.gather_text(std::to_string(peaks.all_reduce_bus_bandwidth));
  check(texts.front() == texts.back(), "ranks have different numbers");
  check(peaks.table().find("all-reduce, 2 ranks") != std::string::npos, peaks.table());
  check(!st::measure_peaks(quick_peaks(folder)).all_reduce_bus_bandwidth, "all-reduce is in the file");
  group.barrier();
  if (group.rank() > 0) return;
  std::remove(st::detail::peaks_file(folder, peaks.machine).c_str());
  std::remove(folder.c_str());
});

const support::RankEntry peaks_refused("peaks refused", [](const dist::ProcessGroup& group, RankChecks& check) {
  st::PeakOptions options{.precisions = {"float32"}, .seconds = 0.01, .use_cache = false};
  if (group.rank() == 1) options.precisions = {"float3"};
  try {
    st::measure_peaks(group, options);
    check(false, "no error");
  } catch (const st::ConfigError& error) {
    check(std::string(error.what()).find("rank 1") == 0, error.what());
  }
});

}  // namespace

TEST_CASE("peaks: ranks take turns; all-reduce is measured and not kept", "[multi]") {
  support::check_ranks(2, "peaks");
}

TEST_CASE("peaks: what one rank refuses all refuse", "[multi]") { support::check_ranks(2, "peaks refused"); }
