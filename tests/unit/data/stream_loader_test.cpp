// SPDX-License-Identifier: Apache-2.0
// The loader over a stream: records in order whatever the workers, complete samples before an error, an end that is not
// known beforehand.
#include "saturate/data/prefetch_loader.hpp"
#include "saturate/error.hpp"
#include "unit/data/sources.hpp"

#include <torch/torch.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <string>

using namespace saturate::data;
using Catch::Matchers::ContainsSubstring;
using saturate::test::batches_of;
using saturate::test::samples_of;

namespace {

/// Record k of the epoch is the text of epoch * 1000 + rank * 100 + k; after `break_at` records it is damaged.
struct Letters {
  static constexpr std::size_t fields = 2;
  int64_t count = 0;
  int64_t break_at = -1;

  struct Pass final : RecordStream {
    int64_t next_one = 0, end = 0, break_at = -1, base = 0;
    bool next(Record& out, std::string& where) override {
      if (next_one == break_at) {
        end = next_one;
        throw saturate::DataError("letters.tar: cut short");
      }
      if (next_one == end) return false;
      const std::string text = std::to_string(base + next_one++);
      out.storage.resize(text.size());
      std::memcpy(out.storage.data(), text.data(), text.size());
      out.parts.assign(1, {"txt", out.storage});
      where = "letters.tar, sample '" + text + "'";
      return true;
    }
  };
  std::unique_ptr<RecordStream> open(const StreamPart& part) const {
    auto pass = std::make_unique<Pass>();
    pass->end = count;
    pass->break_at = break_at;
    pass->base = part.epoch * 1000 + part.rank * 100;
    return pass;
  }
  std::array<FieldLayout, fields> layout() const { return {FieldLayout{at::kFloat, {1}}, FieldLayout{at::kLong, {}}}; }
  void read(const Record& record, const std::string&, const SampleAt&, std::array<std::byte*, fields> out) const {
    const auto& bytes = record.find("txt")->bytes;
    const int64_t value = std::stoll(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    if (value % 1000 == 500) throw std::runtime_error("torn");
    saturate::test::write_number(value, out);
  }
};
static_assert(StreamSource<Letters> && !Source<Letters>);

std::vector<int64_t> range(int64_t first, int64_t last) {
  std::vector<int64_t> all;
  for (int64_t k = first; k < last; ++k) all.push_back(k);
  return all;
}

}  // namespace

TEST_CASE("a stream's records come in order and to their end, whatever the workers", "[data]") {
  for (const int64_t workers : {int64_t{0}, int64_t{1}, int64_t{3}, auto_workers}) {
    for (const int64_t count : {0, 1, 9, 10, 11, 57}) {
      PrefetchLoader loader(Letters{count}, {.batch_size = 10, .workers = workers, .prefetch = 3});
      for (int64_t epoch = 0; epoch < 3; ++epoch)
        REQUIRE(samples_of(loader) == range(1000 * epoch, 1000 * epoch + count));
      PrefetchLoader whole(Letters{count}, {.batch_size = 10, .drop_last = true, .workers = workers});
      REQUIRE(samples_of(whole) == range(0, count / 10 * 10));
    }
  }
}

TEST_CASE("a stream can be left early and started again", "[data]") {
  for (const int64_t workers : {0, 1, 2}) {
    PrefetchLoader loader(Letters{100}, {.batch_size = 4, .workers = workers});
    for (int64_t round = 0; round < 20; ++round) {
      for (auto& batch : loader) {
        REQUIRE(batch.target()[0].item<int64_t>() == 1000 * round);
        break;
      }
    }
    REQUIRE(samples_of(loader) == range(20000, 20100));
  }
}

TEST_CASE("every complete sample of a damaged stream, then its error", "[data]") {
  for (const int64_t workers : {0, 1, 3}) {
    for (const int64_t good : {0, 5, 10, 25}) {
      PrefetchLoader loader(Letters{100, good}, {.batch_size = 10, .workers = workers});
      std::vector<int64_t> seen;
      std::string error;
      try {
        for (auto& batch : loader) {
          for (int64_t k = 0; k < batch.size(); ++k) seen.push_back(batch.target()[k].item<int64_t>());
        }
      } catch (const saturate::DataError& e) {
        error = e.what();
      }
      REQUIRE(seen == range(0, good));
      REQUIRE_THAT(error, ContainsSubstring("cut short"));
    }
  }
}

TEST_CASE("a stream's bad sample is named by where it comes from", "[data]") {
  PrefetchLoader strict(Letters{600}, {.batch_size = 100, .workers = 2});
  REQUIRE_THROWS_WITH(samples_of(strict), ContainsSubstring("letters.tar, sample '500' could not be read: torn"));
  PrefetchLoader lenient(Letters{600}, {.batch_size = 100, .workers = 2, .on_bad_sample = OnBadSample::skip_and_count});
  REQUIRE(samples_of(lenient).size() == 599);
  REQUIRE(lenient.stats().skipped_samples == 1);
}

TEST_CASE("a stream goes on where it was left, by reading again", "[data]") {
  PrefetchLoader first(Letters{95}, {.batch_size = 10, .workers = 2, .rank = 1, .ranks = 2});
  auto it = first.begin();
  ++it;
  ++it;
  const LoaderState state = first.state();
  PrefetchLoader second(Letters{95}, {.batch_size = 10, .workers = 0, .rank = 1, .ranks = 2});
  second.load_state(state);
  REQUIRE(samples_of(second) == range(130, 195));
  REQUIRE(second.state().epoch == 1);
  PrefetchLoader alone(Letters{95}, {.batch_size = 10});
  REQUIRE_THROWS_AS(alone.load_state(state), saturate::ConfigError);
}
