// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/sampler.hpp"

#include "saturate/error.hpp"

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <array>
#include <numeric>

using saturate::data::epoch_order;
using Order = std::vector<int64_t>;

TEST_CASE("epoch_order without shuffle is ascending", "[data]") {
  REQUIRE(epoch_order(5, false, 3, 9) == Order{0, 1, 2, 3, 4});
  REQUIRE(epoch_order(0, true, 3, 9).empty());
  REQUIRE(epoch_order(1, true, 3, 9) == Order{0});
}

// From an independent implementation in Python: these must never change, or a resumed run sees other batches.
TEST_CASE("epoch_order gives the same permutation on every machine and in every release", "[data]") {
  REQUIRE(epoch_order(10, true, 0, 0) == Order{2, 3, 0, 1, 8, 4, 6, 9, 7, 5});
  REQUIRE(epoch_order(10, true, 0, 1) == Order{8, 0, 1, 5, 9, 6, 2, 7, 4, 3});
  REQUIRE(epoch_order(10, true, 1, 0) == Order{9, 5, 0, 3, 1, 8, 7, 6, 2, 4});
  const Order large = epoch_order(60000, true, 42, 7);
  REQUIRE(Order(large.begin(), large.begin() + 5) == Order{53982, 44562, 6173, 42522, 25132});
  REQUIRE(Order(large.end() - 5, large.end()) == Order{29511, 47920, 56455, 1257, 19467});
}

TEST_CASE("epoch_order is a permutation", "[data]") {
  for (const int64_t size : {2, 3, 17, 1000, 60000}) {
    Order order = epoch_order(size, true, 5, 2), all(static_cast<std::size_t>(size));
    std::iota(all.begin(), all.end(), 0);
    std::sort(order.begin(), order.end());
    REQUIRE(order == all);
  }
}

TEST_CASE("epoch_order is uniform over all permutations of four", "[data]") {
  std::array<int, 256> seen{};
  constexpr int draws = 24000;
  for (int64_t epoch = 0; epoch < draws; ++epoch) {
    const Order order = epoch_order(4, true, 11, epoch);
    ++seen[static_cast<std::size_t>(order[0] * 64 + order[1] * 16 + order[2] * 4 + order[3])];
  }
  double chi_square = 0;
  int permutations = 0;
  for (const int count : seen) {
    if (count == 0) continue;
    ++permutations;
    chi_square += (count - draws / 24.0) * (count - draws / 24.0) / (draws / 24.0);
  }
  REQUIRE(permutations == 24);
  REQUIRE(chi_square < 49.7);  // 23 degrees of freedom, p = 0.001; the draws are fixed, so this cannot flicker
}

TEST_CASE("epoch_order differs between seeds and between epochs, also along the diagonal", "[data]") {
  REQUIRE(epoch_order(100, true, 1, 0) != epoch_order(100, true, 0, 1));
  REQUIRE(epoch_order(100, true, 0, 0) != epoch_order(100, true, 0, 1));
  REQUIRE(epoch_order(100, true, 0, 0) != epoch_order(100, true, 1, 0));
}

TEST_CASE("epoch_order refuses negative numbers", "[data]") {
  REQUIRE_THROWS_AS(epoch_order(-1, true, 0, 0), saturate::ConfigError);
  REQUIRE_THROWS_AS(epoch_order(1, true, 0, -1), saturate::ConfigError);
}
