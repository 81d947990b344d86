// SPDX-License-Identifier: Apache-2.0
#include "saturate/distributed/bandwidth_probe.hpp"

#include "distributed_support.hpp"
#include "saturate/error.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>

#include <cmath>

namespace {

namespace st = saturate;
namespace dist = st::distributed;
using support::RankChecks;

const support::RankEntry probes("probe", [](const dist::ProcessGroup& group, RankChecks& check) {
  const auto probe = dist::probe_all_reduce(group, {.bytes = {1 << 20, 4098, 64 << 10}, .repeats = 3, .warmup = 1});
  check(probe.ranks == group.world_size() && probe.backend == "gloo", "not of this group");
  check(probe.sizes.size() == 3 && probe.sizes[0].bytes == 4096, "sizes: whole elements, in order");
  const double factor = 2.0 * (probe.ranks - 1) / probe.ranks;  // nccl-tests
  for (const auto& size : probe.sizes) {
    const double algorithm = static_cast<double>(size.bytes) / size.seconds;
    check(size.seconds > 0 && std::abs(size.algorithm_bandwidth / algorithm - 1) < 1e-12, "algorithm bandwidth");
    check(std::abs(size.bus_bandwidth / (factor * algorithm) - 1) < 1e-12, "bus bandwidth");
  }
  check(probe.link.bandwidth > 0 && probe.link.latency >= 0, "no link");
  const auto texts = group.gather_text(probe.table());
  check(texts.front() == texts.back(), "ranks have different numbers");
  check(probe.table().find("1048576") != std::string::npos, probe.table());
});

/// Every rank gets a ConfigError when `options` are given on the last one alone.
void refused_on_all(const dist::ProcessGroup& group, RankChecks& check, const dist::ProbeOptions& options) {
  const bool last = group.rank() == group.world_size() - 1;
  try {
    dist::probe_all_reduce(group, last ? options : dist::ProbeOptions{.bytes = {4096}});
    check(false, "no error");
  } catch (const st::ConfigError&) {
  }
}

const support::RankEntry refuses("probe refuses", [](const dist::ProcessGroup& group, RankChecks& check) {
  refused_on_all(group, check, {.bytes = {}});
  refused_on_all(group, check, {.bytes = {2}});
  refused_on_all(group, check, {.bytes = {4096}, .repeats = 0});
  refused_on_all(group, check, {.bytes = {4096}, .dtype = at::kBool});
  refused_on_all(group, check, {.bytes = {8192}});  // good, but not what the others ask for
});

dist::ProbedSize took(int64_t bytes, double seconds) { return {.bytes = bytes, .seconds = seconds}; }

}  // namespace

TEST_CASE("probe: bandwidths and a link, the same on all ranks", "[multi]") {
  support::check_ranks(GENERATE(2, 3), "probe");
}

TEST_CASE("probe: what one rank cannot do all refuse", "[multi]") { support::check_ranks(2, "probe refuses"); }

TEST_CASE("probe: one rank has nothing to measure") {
  const auto probe = dist::probe_all_reduce(dist::ProcessGroup());
  CHECK(probe.sizes.empty());
  CHECK(probe.table() == "one rank: there is no all-reduce\n");
}

TEST_CASE("probe: the fit finds the link that made the times") {
  const dist::Link link{.latency = 20e-6, .bandwidth = 3e9};
  for (const int ranks : {2, 4, 7}) {
    std::vector<dist::ProbedSize> sizes;
    for (const int64_t bytes : {4 << 10, 256 << 10, 16 << 20}) {
      const double factor = 2.0 * (ranks - 1) / ranks;
      sizes.push_back(took(bytes, 2 * (ranks - 1) * 20e-6 + factor * static_cast<double>(bytes) / 3e9));
    }
    const dist::Link fit = dist::detail::fit_link(ranks, sizes);
    CHECK_THAT(fit.latency, Catch::Matchers::WithinRel(link.latency, 1e-6));
    CHECK_THAT(fit.bandwidth, Catch::Matchers::WithinRel(link.bandwidth, 1e-6));
  }
  // A burst lets small ones through: the bandwidth is that of the large ones, and the latency not below 0.
  const dist::Link burst =
      dist::detail::fit_link(2, {took(1'000'000, 1e-6), took(20'000'000, 0.02), took(40'000'000, 0.04)});
  CHECK_THAT(burst.bandwidth, Catch::Matchers::WithinRel(1e9, 1e-9));
  CHECK(burst.latency == 0);
  CHECK_THAT(dist::detail::fit_link(2, {took(1000, 1e-6)}).bandwidth, Catch::Matchers::WithinRel(1e9, 1e-9));
}
