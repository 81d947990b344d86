// SPDX-License-Identifier: Apache-2.0
#include "saturate/distributed/scaling_model.hpp"

#include "saturate/error.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>

#include <limits>

using Catch::Matchers::WithinRel;
namespace dist = saturate::distributed;

TEST_CASE("scaling model: all-reduce costs by hand") {
  const dist::Link link{.latency = 10e-6, .bandwidth = 1e9};
  const double bytes = 8e6;
  // 4 ranks: 6 messages of 2 MB.
  CHECK_THAT(dist::ring(link)(4, bytes), WithinRel(6 * 10e-6 + 12e6 / 1e9, 1e-12));
  // 2 log2 4 messages, 1.5 times the bytes.
  CHECK_THAT(dist::halving_doubling(link)(4, bytes), WithinRel(4 * 10e-6 + 12e6 / 1e9, 1e-12));
  CHECK_THAT(dist::tree(link)(4, bytes), WithinRel(4 * (10e-6 + 8e6 / 1e9), 1e-12));
  // 5 ranks need 3 rounds each way.
  CHECK_THAT(dist::tree(link)(5, bytes), WithinRel(6 * (10e-6 + 8e6 / 1e9), 1e-12));
  CHECK_THAT(dist::ring(link)(2, bytes), WithinRel(2 * 10e-6 + 8e6 / 1e9, 1e-12));
  for (const auto& algorithm : {dist::ring(link), dist::halving_doubling(link), dist::tree(link)}) {
    CHECK(algorithm(1, bytes) == 0);
  }
}

TEST_CASE("scaling model: rings inside nodes and over them") {
  const dist::Link inside{.latency = 2e-6, .bandwidth = 100e9}, network{.latency = 20e-6, .bandwidth = 10e9};
  const auto all_reduce = dist::hierarchical(inside, network, 8);
  const double bytes = 1e9;
  // Inside: 14 messages and 1.75 times the bytes; 4 nodes: 6 messages and 1.5 times the bytes over a node's link.
  CHECK_THAT(all_reduce(32, bytes), WithinRel(14 * 2e-6 + 1.75e9 / 100e9 + 6 * 20e-6 + 1.5e9 / 10e9, 1e-12));
  CHECK_THAT(all_reduce(4, bytes), WithinRel(6 * 2e-6 + 1.5e9 / 100e9, 1e-12));
  CHECK_THROWS_AS(all_reduce(12, bytes), saturate::ConfigError);
  CHECK_THROWS_AS(dist::hierarchical(inside, network, 0), saturate::ConfigError);
}

TEST_CASE("scaling model: efficiency by hand") {
  const dist::Link link{.latency = 0, .bandwidth = 1e9};
  const dist::Workload work{.compute = 0.1, .hideable = 0.06, .bytes = 80e6, .buckets = 8};
  const auto points = dist::scaling(work, dist::ring(link), {1, 2, 4});
  CHECK(points[0].efficiency == 1);
  CHECK(points[0].exposed == 0);
  // 2 ranks: 80 ms of communication, 20 of it more than can be hidden; a bucket takes 10.
  CHECK_THAT(points[1].communication, WithinRel(0.08, 1e-12));
  CHECK_THAT(points[1].exposed, WithinRel(0.02, 1e-12));
  CHECK_THAT(points[1].efficiency, WithinRel(0.1 / 0.12, 1e-12));
  CHECK_THAT(points[1].speedup, WithinRel(2 * 0.1 / 0.12, 1e-12));
  // 4 ranks: 120 ms, 60 exposed.
  CHECK_THAT(points[2].step, WithinRel(0.16, 1e-12));
  // The last bucket is never hidden.
  const dist::Workload hidden{.compute = 0.1, .hideable = 0.1, .bytes = 80e6, .buckets = 8};
  CHECK_THAT(dist::scaling(hidden, dist::ring(link), {2})[0].exposed, WithinRel(0.01, 1e-12));
  CHECK(dist::scaling_table(points).find("62.5 %") != std::string::npos);
}

TEST_CASE("scaling model: thousands of ranks are bound by latency in a ring, not by halving and doubling") {
  const dist::Link link{.latency = 5e-6, .bandwidth = 25e9};
  const dist::Workload work{.compute = 0.2, .hideable = 0.1, .bytes = 1e9, .buckets = 40};
  const auto in_ring = dist::scaling(work, dist::ring(link), {8, 512, 8192});
  const auto halving = dist::scaling(work, dist::halving_doubling(link), {8, 512, 8192});
  // 40 buckets × 2 · 8191 × 5 µs = 3.28 s of latency, against 40 × 26 × 5 µs = 5 ms.
  CHECK(in_ring[2].efficiency < 0.07);
  CHECK(halving[2].efficiency > 0.95);
  CHECK(in_ring[0].efficiency >= in_ring[1].efficiency);
}

TEST_CASE("scaling model: refuses what cannot be") {
  CHECK_THROWS_AS(dist::ring({.latency = -1, .bandwidth = 1}), saturate::ConfigError);
  CHECK_THROWS_AS(dist::ring({.latency = 0, .bandwidth = 0}), saturate::ConfigError);
  CHECK_THROWS_AS(dist::ring({.latency = 0, .bandwidth = std::numeric_limits<double>::quiet_NaN()}),
                  saturate::ConfigError);
  const auto ring = dist::ring({.latency = 0, .bandwidth = 1});
  CHECK_THROWS_AS(ring(0, 1), saturate::ConfigError);
  CHECK_THROWS_AS(dist::scaling({.compute = 1, .hideable = 2}, ring, {2}), saturate::ConfigError);
  CHECK_THROWS_AS(dist::scaling({.compute = 1, .buckets = 0}, ring, {2}), saturate::ConfigError);
  CHECK_THROWS_AS(dist::scaling({.compute = 1}, ring, {2, 0}), saturate::ConfigError);
}
