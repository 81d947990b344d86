// SPDX-License-Identifier: Apache-2.0
#include "saturate/trace/trace_stragglers.hpp"
#include "saturate/error.hpp"
#include "trace_builder.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
#include <deque>
#include <functional>
#include <random>
#include <string>

namespace st = saturate;
using Catch::Matchers::ContainsSubstring;
using support::TraceBuilder;

namespace {

constexpr const char* all_reduce = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)";
constexpr int64_t step_ns = 1'000'000;

// Each rank computes and then reduces, on a clock of its own: all are done 50 us after the last has come.
struct Run {
  std::deque<st::Trace> traces;
  std::deque<st::Timeline> timelines;

  Run(int ranks, int steps, const std::function<int64_t(int rank, int step)>& compute_ns) {
    for (int rank = 0; rank < ranks; ++rank) {
      TraceBuilder builder;
      builder.ranks(rank, ranks);
      for (int step = 0; step < steps; ++step) {
        const int64_t begin = 77 * rank + step * step_ns;
        int64_t last = 0;
        for (int other = 0; other < ranks; ++other) last = std::max(last, compute_ns(other, step));
        builder.step(step, begin, begin + step_ns);
        builder.launch("gemm", begin + 1, begin + 100, begin + 100 + compute_ns(rank, step), step + 1);
        builder.collective(all_reduce, "allreduce", begin + 100 + compute_ns(rank, step), begin + 100 + last + 50'000,
                           1000, ranks);
      }
      traces.push_back(builder.done());
      timelines.emplace_back(traces.back());
    }
  }
  std::vector<const st::Timeline*> all() const {
    std::vector<const st::Timeline*> pointers;
    for (const st::Timeline& timeline : timelines) pointers.push_back(&timeline);
    return pointers;
  }
};

}  // namespace

TEST_CASE("trace_stragglers: one rank is slow") {
  const Run run(4, 10, [](int rank, int) { return rank == 2 ? 500'000 : 300'000 + 1000 * rank; });
  const st::TraceStragglers found = st::trace_stragglers(run.all());
  CHECK(found.steps == 10);
  CHECK(found.collectives == 10);
  CHECK(found.straggler == 2);
  CHECK(found.ranks[2].last == 10);
  CHECK(found.ranks[2].waiting_ns == 0);
  CHECK(found.ranks[2].held_up_ns == 10 * (500'000 - 303'000));
  CHECK(found.ranks[0].waiting_ns == 10 * 200'000);
  CHECK(found.ranks[0].collective_ns == 10 * 250'000);
  CHECK(found.ranks[0].compute_ns == 10 * 300'000);
  CHECK(found.ranks[0].step_ns == 10 * step_ns);
  CHECK_THAT(found.verdict, ContainsSubstring("rank 2 holds the others up: last at 10 of 10 collectives, 0.197 ms"));
}

TEST_CASE("trace_stragglers: none, and each in turn") {
  const Run even(3, 5, [](int rank, int) { return 300'000 + 100 * rank; });
  const st::TraceStragglers none = st::trace_stragglers(even.all());
  CHECK(none.straggler == -1);
  CHECK(none.ranks[2].last == 0);  // by less than the tolerance
  CHECK_THAT(none.verdict, ContainsSubstring("no rank holds the others up"));
  const Run turns(3, 9, [](int rank, int step) { return step % 3 == rank ? 600'000 : 300'000; });
  const st::TraceStragglers uneven = st::trace_stragglers(turns.all());
  CHECK(uneven.straggler == -1);
  for (const st::RankTime& rank : uneven.ranks) CHECK(rank.last == 3);
  CHECK_THAT(uneven.verdict, ContainsSubstring("but for no single one") && ContainsSubstring("20.0 %"));
  // Below what a straggler must cost.
  const Run slight(3, 5, [](int rank, int) { return rank == 0 ? 315'000 : 300'000; });
  CHECK(st::trace_stragglers(slight.all()).straggler == -1);
  CHECK(st::trace_stragglers(slight.all(), {.share_of_step = 0.01}).straggler == 0);
}

TEST_CASE("trace_stragglers: only steps and collectives that all have") {
  std::deque<st::Trace> traces;
  for (int rank = 0; rank < 2; ++rank) {
    TraceBuilder builder;  // ranks are not told
    for (int step = rank; step < 3 + rank; ++step) builder.step(step, step * 1000, step * 1000 + 1000);
    builder.collective(all_reduce, "allreduce", 1100, 1200 + 100 * rank, 10, 2);
    builder.collective("ncclDevKernel_Broadcast", "broadcast", 1300, 1900, 10, 8);  // not of these two
    builder.collective(rank == 0 ? "ncclDevKernel_AllGather" : "ncclDevKernel_Broadcast", "", 1910, 1920, 10, 2);
    traces.push_back(builder.done());
  }
  const st::Timeline first(traces[0]), second(traces[1]);
  const st::TraceStragglers found = st::trace_stragglers({&first, &second}, {.tolerance_ns = 0});
  CHECK(found.steps == 2);
  CHECK(found.collectives == 1);
  CHECK(found.straggler == 0);
  CHECK(found.ranks[1].rank == 1);
  CHECK(found.ranks[1].waiting_ns == 100);
}

TEST_CASE("trace_stragglers: Gloo's ranges on threads") {
  std::deque<st::Trace> traces;
  for (int rank = 0; rank < 2; ++rank) {
    TraceBuilder builder;
    builder.ranks(rank, 2).step(0, 0, 1000).op("aten::mm", 0, 400 + 300 * rank).op("c10d::allreduce_", 800, 810);
    builder.add(st::EventKind::annotation, builder.cpu(9), "gloo:all_reduce", 400 + 300 * rank, 800);
    traces.push_back(builder.done());
  }
  const st::Timeline first(traces[0]), second(traces[1]);
  const st::TraceStragglers found = st::trace_stragglers({&first, &second}, {.tolerance_ns = 10});
  CHECK(found.collectives == 1);
  CHECK(found.straggler == 1);
  CHECK(found.ranks[0].waiting_ns == 300);
}

TEST_CASE("trace_stragglers: what cannot be compared") {
  const Run run(2, 1, [](int, int) { return 1000; });
  CHECK_THROWS_AS(st::trace_stragglers({run.all()[0]}), st::ConfigError);
  CHECK_THROWS_AS(st::trace_stragglers({run.all()[0], nullptr}), st::ConfigError);
  CHECK_THROWS_AS(st::trace_stragglers({run.all()[0], run.all()[0]}), st::ConfigError);
  const st::Trace empty = TraceBuilder().step(0, 0, 100).done();
  const st::Timeline one(empty), two(empty);
  const st::TraceStragglers found = st::trace_stragglers({&one, &two});
  CHECK(found.straggler == -1);
  CHECK_THAT(found.verdict, ContainsSubstring("no collective is in all traces"));
}

TEST_CASE("trace_stragglers: waiting is what a collective took longer than at the last, in any run") {
  for (unsigned seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    const int ranks = 2 + static_cast<int>(random() % 5), steps = 1 + static_cast<int>(random() % 6);
    std::vector<int64_t> times;
    for (int i = 0; i < ranks * steps; ++i) times.push_back(100'000 + static_cast<int64_t>(random() % 500'000));
    const auto time = [&](int rank, int step) { return times[static_cast<std::size_t>(step * ranks + rank)]; };
    const Run run(ranks, steps, time);
    const st::TraceStragglers found = st::trace_stragglers(run.all(), {.tolerance_ns = 0});
    int64_t last = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      int64_t waited = 0;
      for (int step = 0; step < steps; ++step) {
        int64_t latest = 0;
        for (int other = 0; other < ranks; ++other) latest = std::max(latest, time(other, step));
        waited += latest - time(rank, step);
      }
      const st::RankTime& row = found.ranks[static_cast<std::size_t>(rank)];
      REQUIRE(row.waiting_ns == waited);
      REQUIRE(row.collective_ns == waited + steps * 50'000);
      last += row.last;
    }
    REQUIRE(last == found.collectives);
  }
}
