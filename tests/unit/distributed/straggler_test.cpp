// SPDX-License-Identifier: Apache-2.0
#include "saturate/distributed/straggler.hpp"
#include "distributed_support.hpp"
#include "saturate/distributed/ddp.hpp"
#include "saturate/error.hpp"
#include "saturate/optim/sgd.hpp"
#include "saturate/trainer.hpp"

#include <chrono>
#include <limits>
#include <memory>
#include <thread>

namespace st = saturate;
using support::Batch;
using support::RankChecks;
using support::dist::ProcessGroup;

namespace {

constexpr auto nap = std::chrono::milliseconds(200);  // a window of these models takes a few

/// Batches that come late.
struct SleepyLoader {
  std::vector<Batch> batches;
  bool sleeps = false;

  struct Iterator {
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    const SleepyLoader* loader;
    std::size_t at;
    const Batch& operator*() const {
      if (loader->sleeps) std::this_thread::sleep_for(nap);
      return loader->batches[at];
    }
    Iterator& operator++() {
      ++at;
      return *this;
    }
    bool operator!=(const Iterator& other) const { return at != other.at; }
    bool operator==(const Iterator& other) const { return at == other.at; }
  };
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, batches.size()}; }
  std::size_t size() const { return batches.size(); }
};

struct SleepyImpl : support::MlpImpl {
  bool sleeps = false;
  at::Tensor forward(const at::Tensor& x) {
    if (sleeps && is_training()) std::this_thread::sleep_for(nap);
    return support::MlpImpl::forward(x);
  }
};

std::vector<Batch> batches_of(int rank) {
  std::vector<Batch> batches;
  for (int64_t i = 0; i < 12; ++i) batches.push_back(support::classes(4, 100 * i + rank));
  return batches;
}

std::string rank_is_slowest(int rank) { return "rank " + std::to_string(rank) + " is the slowest"; }

const support::RankEntry slow_loader("straggler, loader", [](const ProcessGroup& group, RankChecks& check) {
  const int slow = 1;
  support::LogCapture log;
  support::Mlp net;
  int64_t told = 0;
  st::StragglerReport report(group, {.every = 3, .notify = [&](const st::StragglerTimes&) { ++told; }});
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{}, st::Ddp(group),
                      std::ref(report));
  trainer.fit(SleepyLoader{batches_of(group.rank()), group.rank() == slow}, {.log_every = 3});
  const auto last = report.last(), overall = report.overall();
  check(told == 4, "told of " + std::to_string(told) + " intervals");
  check(last && last->window == 12 && last->own_seconds.size() == 3, "the last interval");
  for (const auto& times : {*last, *overall}) {
    check(times.slowest() == slow, times.in_words());
    check(times.ratio() > 2, times.in_words());
    check(times.own_seconds[slow] > 0.19, times.in_words());
    check(times.loader_seconds[slow] > 0.15 && times.loader_seconds[0] < 0.15, times.in_words());
  }
  const bool first = group.rank() == 0;
  check(log.contains("StragglerReport, window 6: " + rank_is_slowest(slow)) == first, "the warning");
  check(log.contains("StragglerReport, all of fit: " + rank_is_slowest(slow)) == first, "the summary");
});

// In forward, with evaluations between, on the last of three ranks.
const support::RankEntry slow_forward("straggler, forward", [](const ProcessGroup& group, RankChecks& check) {
  const int slow = 2;
  auto net = std::make_shared<SleepyImpl>();
  net->sleeps = group.rank() == slow;
  st::StragglerReport report(group, {.every = 4});
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{}, st::Ddp(group),
                      std::ref(report));
  // Rank 0's evaluations take long, which says nothing about its training.
  trainer.fit(batches_of(group.rank()), SleepyLoader{batches_of(9), group.rank() == 0}, {.evaluate_every = 6});
  const auto times = report.overall();
  check(times && times->slowest() == slow && times->ratio() > 2, times ? times->in_words() : "nothing");
  check(times->own_seconds[0] < 0.15, times->in_words());
});

}  // namespace

TEST_CASE("StragglerReport: a rank that waits for its loader is found", "[multi]") {
  support::check_ranks(3, "straggler, loader");
}

TEST_CASE("StragglerReport: a rank that computes longer is found; evaluations are left out", "[multi]") {
  support::check_ranks(3, "straggler, forward");
}

TEST_CASE("StragglerTimes: the slowest against the others' median, in words") {
  const double none = std::numeric_limits<double>::quiet_NaN();
  st::StragglerTimes times{10, {0.020, 0.019, 0.0612, 0.0216}, {none, 0.001, 0.041, none}};
  CHECK(times.slowest() == 2);
  CHECK(times.median_of_others() == 0.020);
  CHECK(times.in_words() ==
        "rank 2 is the slowest: 61.2 ms of its own a window, 3.1 times the others' median of 20.0 ms (41.0 ms of it "
        "wait for its loader)");
  times = {10, {0.030, 0.010}, {none, none}};
  CHECK(times.in_words() ==
        "rank 0 is the slowest: 30.0 ms of its own a window, 3.0 times the others' median of 10.0 ms");
  times = {10, {0.030, 0.010, 0.020}, {}};
  CHECK(times.median_of_others() == 0.015);
  times = {10, {0.5}, {none}};
  CHECK(times.ratio() == 1.0);
  CHECK(st::StragglerTimes().in_words() == "no rank has been timed");
}

TEST_CASE("StragglerReport: settings that cannot work, and one process") {
  const ProcessGroup alone;
  CHECK_THROWS_AS(st::StragglerReport(alone, {.every = 0}), st::ConfigError);
  CHECK_THROWS_AS(st::StragglerReport(alone, {.warn_ratio = 1.0}), st::ConfigError);
  support::Mlp net;
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{},
                      st::StragglerReport(alone, {.every = 2}));
  trainer.fit(batches_of(0));
  CHECK_FALSE(trainer.policy<st::StragglerReport>().last());
}
