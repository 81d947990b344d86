// SPDX-License-Identifier: Apache-2.0
// Ranks that share an epoch, samplers, bad samples, and what a batch's transform is given.
#include "saturate/data/prefetch_loader.hpp"
#include "saturate/data/tensor_source.hpp"
#include "saturate/error.hpp"
#include "unit/data/sources.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <map>
#include <mutex>
#include <set>
#include <string>

using namespace saturate::data;
using Catch::Matchers::ContainsSubstring;
using saturate::test::batches_of;
using saturate::test::Numbers;
using saturate::test::samples_of;

namespace {

using Batches = std::vector<std::vector<int64_t>>;

std::vector<Batches> all_ranks(int64_t samples, int64_t ranks, LoaderOptions options) {
  std::vector<Batches> result;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    options.rank = rank;
    options.ranks = ranks;
    PrefetchLoader loader(Numbers{samples}, options);
    result.push_back(batches_of(loader));
    REQUIRE(static_cast<int64_t>(result.back().size()) == loader.batches_per_epoch());
  }
  return result;
}

std::map<int64_t, int> times_seen(const std::vector<Batches>& ranks) {
  std::map<int64_t, int> times;
  for (const Batches& rank : ranks) {
    for (const auto& batch : rank) {
      for (const int64_t sample : batch) ++times[sample];
    }
  }
  return times;
}

/// Bad when its number is in the set.
Numbers with_bad(int64_t count, std::set<int64_t> bad) {
  Numbers source{count};
  source.before = [bad = std::move(bad)](int64_t index) {
    if (bad.count(index) > 0) throw std::runtime_error("torn");
  };
  return source;
}

}  // namespace

TEST_CASE("steps are equal on all ranks unless unevenness is allowed, and samples come as promised", "[data]") {
  for (const int64_t samples : {1, 2, 5, 9, 10, 12, 23, 24, 25, 100}) {
    for (const int64_t ranks : {1, 2, 3, 4}) {
      for (const Uneven uneven : {Uneven::pad, Uneven::drop, Uneven::allow}) {
        CAPTURE(samples, ranks, static_cast<int>(uneven));
        const auto seen = all_ranks(samples, ranks, {.batch_size = 4, .shuffle = true, .seed = 3, .uneven = uneven});
        const auto times = times_seen(seen);
        const int64_t rest = samples % (4 * ranks);
        for (const auto& [sample, count] : times) REQUIRE(count <= (uneven == Uneven::pad ? 1 + ranks : 1));
        if (uneven == Uneven::allow) {
          REQUIRE(static_cast<int64_t>(times.size()) == samples);
          for (const Batches& rank : seen) {
            REQUIRE(rank.size() <= seen.front().size());
            REQUIRE(rank.size() + 1 >= seen.front().size());
          }
          continue;
        }
        for (const Batches& rank : seen) {  // the same steps, of the same sizes
          REQUIRE(rank.size() == seen.front().size());
          for (std::size_t b = 0; b < rank.size(); ++b) REQUIRE(rank[b].size() == seen.front()[b].size());
        }
        int64_t total = 0;
        for (const auto& [sample, count] : times) total += count;
        if (uneven == Uneven::pad) {
          REQUIRE(static_cast<int64_t>(times.size()) == samples);
          REQUIRE(total == samples + (rest % ranks == 0 ? 0 : ranks - rest % ranks));
        } else {
          REQUIRE(total == samples - rest % ranks);
        }
      }
    }
  }
}

TEST_CASE("five and four batches: two ranks finish with the same number of steps, each sample once", "[data]") {
  // 36 samples, batches of 4 on two ranks: eight whole batches, and one that the ranks share.
  const auto seen = all_ranks(36, 2, {.batch_size = 4});
  REQUIRE(seen[0].size() == 5);
  REQUIRE(seen[1].size() == 5);
  const auto times = times_seen(seen);
  REQUIRE(times.size() == 36);
  for (const auto& [sample, count] : times) REQUIRE(count == 1);
}

TEST_CASE("ranks and drop_last leave the same steps out everywhere", "[data]") {
  const auto seen = all_ranks(35, 3, {.batch_size = 4, .drop_last = true});
  for (const Batches& rank : seen) REQUIRE(rank.size() == 2);
}

TEST_CASE("ranks that cannot be are refused", "[data]") {
  const auto with = [](LoaderOptions options) { PrefetchLoader(Numbers{30}, options); };
  REQUIRE_THROWS_AS(with({.ranks = 0}), saturate::ConfigError);
  REQUIRE_THROWS_WITH(with({.rank = 2, .ranks = 2}), ContainsSubstring("rank is 2; with ranks = 2 it is 0 to 1"));
  REQUIRE_THROWS_AS(with({.rank = -1}), saturate::ConfigError);
  REQUIRE_THROWS_AS(with({.batch_size = int64_t{1} << 62, .ranks = 4}), saturate::ConfigError);
}

TEST_CASE("a bad sample stops the epoch with its name, or is left out and counted", "[data]") {
  for (const int64_t workers : {0, 1, 3}) {
    PrefetchLoader strict(with_bad(20, {13}), {.batch_size = 5, .workers = workers});
    REQUIRE_THROWS_WITH(samples_of(strict), ContainsSubstring("sample 13 could not be read: torn"));
    REQUIRE(strict.stats().skipped_samples == 0);

    PrefetchLoader lenient(with_bad(20, {0, 13, 14}),
                           {.batch_size = 5, .workers = workers, .on_bad_sample = OnBadSample::skip_and_count});
    REQUIRE(batches_of(lenient) == Batches{{1, 2, 3, 4}, {5, 6, 7, 8, 9}, {10, 11, 12}, {15, 16, 17, 18, 19}});
    REQUIRE(lenient.stats().skipped_samples == 3);
    REQUIRE(lenient.stats().samples == 17);
    const std::string last = lenient.stats().last_skipped;  // several workers find them in any order
    REQUIRE_THAT(last,
                 ContainsSubstring(workers <= 1 ? "sample 14 could not be read: torn" : "could not be read: torn"));

    PrefetchLoader hopeless(with_bad(20, {5, 6, 7, 8, 9}),
                            {.batch_size = 5, .workers = workers, .on_bad_sample = OnBadSample::skip_and_count});
    REQUIRE_THROWS_WITH(samples_of(hopeless), ContainsSubstring("all 5 samples of a batch are bad"));
  }
}

TEST_CASE("the rows of a batch with a bad sample are those of the good ones", "[data]") {
  PrefetchLoader loader(with_bad(6, {2}), {.batch_size = 6, .on_bad_sample = OnBadSample::skip_and_count});
  for (auto& batch : loader) {
    REQUIRE(batch.data().flatten().equal(torch::tensor({0.f, 1.f, 3.f, 4.f, 5.f})));
    REQUIRE(batch.target().equal(torch::tensor({0, 1, 3, 4, 5}, at::kLong)));
  }
}

TEST_CASE("a transform is told where each row belongs, and may replace the tensors", "[data]") {
  std::mutex mutex;
  std::map<int64_t, SampleAt> places;
  const LoaderOptions options{.batch_size = 4,
                              .shuffle = true,
                              .seed = 9,
                              .workers = 2,
                              .rank = 1,
                              .ranks = 2,
                              .on_bad_sample = OnBadSample::skip_and_count,
                              .transform = [&](std::span<at::Tensor> fields, std::span<const SampleAt> at) {
                                REQUIRE(fields[0].size(0) == static_cast<int64_t>(at.size()));
                                const std::lock_guard lock(mutex);
                                for (std::size_t k = 0; k < at.size(); ++k) {
                                  REQUIRE(fields[1][static_cast<int64_t>(k)].item<int64_t>() == at[k].index);
                                  places.insert_or_assign(at[k].position, at[k]);
                                }
                                fields[0] = fields[0] * 2;
                              }};
  const auto order = epoch_order(16, true, 9, 0);
  PrefetchLoader loader(with_bad(16, {order[5]}), options);
  for (auto& batch : loader) REQUIRE(batch.data().flatten().equal(batch.target().to(at::kFloat) * 2));
  REQUIRE(places.size() == 7);  // positions 4..7 and 12..15, less the bad one
  for (const auto& [position, at] : places) {
    REQUIRE(position % 8 >= 4);
    REQUIRE(at.index == order[static_cast<std::size_t>(position)]);
    REQUIRE(at.seed == 9);
    REQUIRE(at.epoch == 0);
  }
}

TEST_CASE("a transform's exception reaches the loop", "[data]") {
  PrefetchLoader loader(Numbers{20}, {.batch_size = 5, .transform = [](std::span<at::Tensor>, auto) {
                                        throw saturate::DataError("no such augmentation");
                                      }});
  REQUIRE_THROWS_WITH(samples_of(loader), ContainsSubstring("no such augmentation"));
}

TEST_CASE("workers call LibTorch on one core each, other threads keep theirs", "[data]") {
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  std::atomic<int> seen{0};
  PrefetchLoader loader(
      Numbers{20}, {.batch_size = 5, .transform = [&](std::span<at::Tensor>, auto) { seen = at::get_num_threads(); }});
  samples_of(loader);
  int afterwards = 0;
  std::thread([&] { afterwards = at::get_num_threads(); }).join();
  REQUIRE(seen == 1);
  REQUIRE(at::get_num_threads() == 2);
  REQUIRE(afterwards == 2);
  at::set_num_threads(threads);
}

TEST_CASE("a layout with channels last gives channels-last tensors over the same bytes", "[data]") {
  struct Pixels : Numbers {
    std::array<FieldLayout, 2> layout() const {
      return {FieldLayout{at::kByte, {3, 2, 2}, at::MemoryFormat::ChannelsLast}, FieldLayout{at::kLong, {}}};
    }
    void read(int64_t index, std::array<std::byte*, 2> out) const {
      for (int k = 0; k < 12; ++k) out[0][k] = static_cast<std::byte>(12 * index + k);
      std::memcpy(out[1], &index, sizeof index);
    }
  };
  PrefetchLoader loader(Pixels{Numbers{6}}, {.batch_size = 3});
  int64_t first = 0;
  for (auto& batch : loader) {
    REQUIRE(batch.data().sizes() == at::IntArrayRef({3, 3, 2, 2}));
    REQUIRE(batch.data().is_contiguous(at::MemoryFormat::ChannelsLast));
    const auto bytes = torch::arange(12 * first, 12 * (first + 3)).to(at::kByte).view({3, 2, 2, 3});
    REQUIRE(batch.data().equal(bytes.permute({0, 3, 1, 2})));
    first += 3;
  }
}

TEST_CASE("shards are read one by one, through the buffer", "[data]") {
  const ShardShuffledSampler sampler({10, 0, 30, 5, 15}, 8);
  const auto order = sampler.order(60, 4, 2);
  std::vector<int64_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  REQUIRE(sorted == epoch_order(60, false, 0, 0));
  REQUIRE(order == sampler.order(60, 4, 2));
  REQUIRE(order != sampler.order(60, 4, 3));
  REQUIRE(order != sampler.order(60, 5, 2));
  // What was not in the buffer yet cannot come: at any time only shards that are begun and not used up, and the next.
  const auto shard_of = [](int64_t i) { return i < 10 ? 0 : i < 40 ? 2 : i < 45 ? 3 : 4; };
  std::map<int, int> taken;
  const std::map<int, int> sizes{{0, 10}, {2, 30}, {3, 5}, {4, 15}};
  for (const int64_t i : order) {
    ++taken[shard_of(i)];
    int open = 0;
    for (const auto& [shard, count] : taken) open += count < sizes.at(shard) ? 1 : 0;
    REQUIRE(open <= 3);
  }
  REQUIRE(ShardShuffledSampler({3, 3}, 1).order(6, 0, 0).size() == 6);
  REQUIRE_THROWS_AS(ShardShuffledSampler({3}, 0), saturate::ConfigError);
  REQUIRE_THROWS_AS(ShardShuffledSampler({-3}, 2), saturate::ConfigError);
  REQUIRE_THROWS_AS(sampler.order(61, 0, 0), saturate::ConfigError);
}

TEST_CASE("a sampler that breaks its promise is an error, not memory gone wrong", "[data]") {
  struct Wrong final : Sampler {
    std::vector<int64_t> numbers;
    int64_t length(int64_t) const override { return 4; }
    std::vector<int64_t> order(int64_t, uint64_t, int64_t) const override { return numbers; }
    std::string name() const override { return "wrong"; }
  };
  for (const auto& numbers : std::vector<std::vector<int64_t>>{{0, 1, 2}, {0, 1, 2, 30}, {0, 1, 2, -1}}) {
    auto sampler = std::make_shared<Wrong>();
    sampler->numbers = numbers;
    PrefetchLoader loader(Numbers{30}, {.batch_size = 2, .sampler = sampler});
    REQUIRE_THROWS_WITH(samples_of(loader), ContainsSubstring("the sampler wrong gave"));
  }
}
