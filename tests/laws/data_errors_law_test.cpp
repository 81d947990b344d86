// SPDX-License-Identifier: Apache-2.0
// Law 9: what a worker throws reaches the loop at the batch where it happened, with its message and the sample's
// number; never a hang, never a silently short epoch; and the loader can be started again.
#include "saturate/data/prefetch_loader.hpp"
#include "saturate/error.hpp"
#include "unit/data/sources.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <exception>
#include <string>

using namespace saturate::data;
using saturate::test::Numbers;

namespace {

struct BadPixel : std::runtime_error {
  using std::runtime_error::runtime_error;
};

Numbers failing_at(int64_t sample, std::shared_ptr<std::atomic<bool>> broken) {
  Numbers source{100};
  source.before = [=](int64_t index) {
    if (index == sample && *broken) throw BadPixel("pixel 3 of image " + std::to_string(index) + " is torn");
  };
  return source;
}

/// The same source with a bulk gather.
struct Gathering : Numbers {
  void gather(std::span<const int64_t> indices, std::array<std::byte*, 2> out) const {
    for (std::size_t k = 0; k < indices.size(); ++k) {
      read(indices[k], {out[0] + k * sizeof(float), out[1] + k * sizeof(int64_t)});
    }
  }
};
static_assert(GatheringSource<Gathering>);

bool nests_the_cause(const std::exception& error) {
  try {
    std::rethrow_if_nested(error);
  } catch (const BadPixel&) {
    return true;
  } catch (...) {
  }
  return false;
}

/// The check of this law: "" or what is wrong with how `loader` reports that sample 37 (batch 3 of 10) is torn.
template <class Loader>
std::string fault_of(Loader& loader, std::atomic<bool>& broken) {
  broken = true;
  int64_t batches = 0;
  bool thrown = false;
  try {
    for (auto& batch : loader) {
      if (batch.target()[0].template item<int64_t>() != 10 * batches) return "a batch is missing or out of order";
      ++batches;
    }
  } catch (const std::exception& error) {
    thrown = true;
    const std::string message = error.what();
    if (message.find("pixel 3 of image 37 is torn") == std::string::npos) return "the message is lost: " + message;
    if (message.find("sample 37") == std::string::npos) return "the sample is not named: " + message;
    if (dynamic_cast<const saturate::DataError*>(&error) == nullptr) return "it is no DataError";
    if (!nests_the_cause(error)) return "the cause is lost";
  }
  if (!thrown) return "the epoch ended silently after " + std::to_string(batches) + " batches";
  if (batches != 3) return "reported at batch " + std::to_string(batches);
  broken = false;
  if (saturate::test::samples_of(loader).size() != 100) return "it cannot be started again";
  return "";
}

// Broken loaders.

class WrappedLoader {
 public:
  explicit WrappedLoader(Numbers source) : inner_(std::move(source), {.batch_size = 10}) {}
  auto end() { return batches_.end(); }

 protected:
  void keep(const Batch<2>& batch) { batches_.push_back({{batch.data().clone(), batch.target().clone()}}); }
  PrefetchLoader<Numbers> inner_;
  std::vector<Batch<2>> batches_;
};

/// Takes an exception for the end of the data.
struct SilentLoader : WrappedLoader {
  using WrappedLoader::WrappedLoader;
  auto begin() {
    batches_.clear();
    try {
      for (auto& batch : inner_) keep(batch);
    } catch (const std::exception&) {
    }
    return batches_.begin();
  }
};

/// Reports it before the batches that are fine.
struct EarlyLoader : WrappedLoader {
  using WrappedLoader::WrappedLoader;
  auto begin() {
    batches_.clear();
    for (auto& batch : inner_) keep(batch);
    return batches_.begin();
  }
};

/// Says only that something went wrong.
struct VagueLoader : WrappedLoader {
  using WrappedLoader::WrappedLoader;
  auto begin() {
    batches_.clear();
    try {
      for (auto& batch : inner_) keep(batch);
    } catch (const std::exception&) {
      throw saturate::DataError("a worker failed");
    }
    return batches_.begin();
  }
};

}  // namespace

TEST_CASE("law 9: a worker's exception reaches the loop at its batch", "[laws][data]") {
  const auto broken = std::make_shared<std::atomic<bool>>(true);
  for (const int64_t workers : {0, 1, 2, 4}) {
    for (const int64_t prefetch : {1, 2, 6}) {
      const LoaderOptions options{.batch_size = 10, .workers = workers, .prefetch = prefetch};
      INFO(workers << " workers, prefetch " << prefetch);
      PrefetchLoader loader(failing_at(37, broken), options);
      for (int round = 0; round < 3; ++round) REQUIRE(fault_of(loader, *broken) == "");
      PrefetchLoader gathering(Gathering{failing_at(37, broken)}, options);
      for (int round = 0; round < 3; ++round) REQUIRE(fault_of(gathering, *broken) == "");
    }
  }
}

TEST_CASE("law 9: the first batch's exception leaves begin(), a loader may die with one unread", "[laws][data]") {
  const auto broken = std::make_shared<std::atomic<bool>>(true);
  PrefetchLoader loader(failing_at(0, broken), {.batch_size = 10, .workers = 2});
  REQUIRE_THROWS_AS(loader.begin(), saturate::DataError);
  REQUIRE_THROWS_AS(loader.begin(), saturate::DataError);
  PrefetchLoader unread(failing_at(15, broken), {.batch_size = 10, .workers = 2});
  REQUIRE(unread.begin()->size() == 10);
}

TEST_CASE("law 9: what is no std::exception arrives too", "[laws][data]") {
  Numbers source{20};
  source.before = [](int64_t index) {
    if (index == 15) throw 42;
  };
  PrefetchLoader loader(source, {.batch_size = 10});
  try {
    saturate::test::samples_of(loader);
    FAIL("a short epoch");
  } catch (const saturate::DataError& error) {
    REQUIRE(std::string(error.what()).find("sample 15") != std::string::npos);
  }
}

TEST_CASE("law 9: the check fails on loaders that hide, hasten or blur the error", "[laws][data]") {
  const auto broken = std::make_shared<std::atomic<bool>>(true);
  SilentLoader silent(failing_at(37, broken));
  REQUIRE(fault_of(silent, *broken) == "the epoch ended silently after 3 batches");
  EarlyLoader early(failing_at(37, broken));
  REQUIRE(fault_of(early, *broken) == "reported at batch 0");
  VagueLoader vague(failing_at(37, broken));
  REQUIRE(fault_of(vague, *broken) == "the message is lost: a worker failed");
}
