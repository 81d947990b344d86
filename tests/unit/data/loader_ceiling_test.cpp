// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/loader_ceiling.hpp"

#include "saturate/data/prefetch_loader.hpp"
#include "saturate/data/stage.hpp"
#include "saturate/error.hpp"
#include "unit/data/sources.hpp"

#include <torch/torch.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

using namespace saturate::data;
using Catch::Matchers::ContainsSubstring;
using saturate::test::Numbers;

namespace {

/// 100 batches of 128 in 6.3 s, by two workers that were busy all the time.
LoaderCeiling measured(double read_share, double decode_share) {
  LoaderCeiling ceiling;
  ceiling.seconds = 6.3;
  ceiling.workers = 2;
  ceiling.cores = 8;
  ceiling.spent.batches = 100;
  ceiling.spent.samples = 12800;
  ceiling.spent.worker_seconds = 12.6;
  ceiling.spent.read_seconds = 12.6 * read_share;
  ceiling.spent.decode_seconds = 12.6 * decode_share;
  ceiling.spent.bytes = 63000000;
  return ceiling;
}

}  // namespace

TEST_CASE("the ceiling's cause is what the workers spend most on", "[data]") {
  REQUIRE(measured(0.04, 0.93).limit() == LoaderLimit::decode);
  REQUIRE(measured(0.04, 0.93).words() ==
          "2,032 samples/s, 10 MB/s, with 2 workers. Decoding is the limit: 93 % of the workers' time");
  REQUIRE(measured(0.6, 0.3).limit() == LoaderLimit::read);
  REQUIRE_THAT(measured(0.6, 0.3).words(), ContainsSubstring("Reading files is the limit: 60 %"));
  REQUIRE(measured(0.1, 0.1).limit() == LoaderLimit::source);
  LoaderCeiling idle = measured(0.04, 0.93);
  idle.spent.worker_seconds = 2;
  REQUIRE(idle.limit() == LoaderLimit::loop);
  LoaderCeiling copying = measured(0.04, 0.93);
  copying.spent.copy_seconds = 6.2;
  REQUIRE(copying.limit() == LoaderLimit::copy);
}

TEST_CASE("a step says whether training is data-bound, and how many workers would do", "[data]") {
  const LoaderCeiling ceiling = measured(0.04, 0.93);  // 63 ms a batch, 126 ms of work
  REQUIRE(compare_with_step(ceiling, 0.041) ==
          "data-bound: the step takes 41 ms, the loader 63 ms; 4 workers would be enough");
  REQUIRE(compare_with_step(ceiling, 0.100) == "the loader keeps up: the step takes 100 ms, the loader 63 ms");
  REQUIRE_THAT(compare_with_step(ceiling, 0.004), ContainsSubstring("32 workers would be needed, and there are 8"));
  LoaderCeiling copying = ceiling;
  copying.spent.copy_seconds = 6.2;
  REQUIRE_THAT(compare_with_step(copying, 0.041), ContainsSubstring("more workers would not help"));
  LoaderCeiling inside = ceiling;
  inside.workers = 0;
  inside.spent.worker_seconds = 6.2;
  REQUIRE_THAT(compare_with_step(inside, 0.041), ContainsSubstring("2 workers would be enough"));
  REQUIRE_THROWS_AS(compare_with_step(ceiling, 0), saturate::ConfigError);
}

TEST_CASE("loader_ceiling measures a loader alone and leaves it usable", "[data]") {
  struct Staged : Numbers {
    void read(int64_t index, std::array<std::byte*, 2> out) const {
      const StageScope timed(Stage::decode);
      std::this_thread::sleep_for(std::chrono::microseconds(300));
      saturate::test::write_number(index, out);
    }
  };
  for (const int64_t workers : {0, 1}) {
    PrefetchLoader loader(Staged{Numbers{64}}, {.batch_size = 4, .workers = workers});
    const LoaderCeiling ceiling = loader_ceiling(loader, 0.2);
    REQUIRE(ceiling.limit() == LoaderLimit::decode);
    REQUIRE(ceiling.seconds >= 0.2);
    REQUIRE(ceiling.spent.batches > 0);
    REQUIRE(ceiling.spent.samples == 4 * ceiling.spent.batches);
    REQUIRE(ceiling.samples_per_second() < 4000);
    REQUIRE(saturate::test::samples_of(loader).size() == 64);
  }
}

TEST_CASE("a ceiling of nothing is an error", "[data]") {
  PrefetchLoader none(Numbers{3}, {.batch_size = 4, .drop_last = true});
  REQUIRE_THROWS_AS(loader_ceiling(none, 0.1), saturate::DataError);
  PrefetchLoader some(Numbers{3}, {.batch_size = 4});
  REQUIRE_THROWS_AS(loader_ceiling(some, 0), saturate::ConfigError);
}
