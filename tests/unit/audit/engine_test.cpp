// SPDX-License-Identifier: Apache-2.0
#include "saturate/audit/engine.hpp"

#include <algorithm>
#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>

#include "fake.hpp"
#include "saturate/error.hpp"

namespace saturate::audit {
namespace {

using Catch::Approx;

std::ptrdiff_t count_calls(const fake::World& world, const std::string& prefix) {
  return std::count_if(world.calls.begin(), world.calls.end(), [&](const auto& c) { return c.starts_with(prefix); });
}

TEST_CASE("the audit keeps what pays and rejects what does not, each with its reason") {
  fake::World world;
  world.effects["slow"] = {.speed = 0.11};
  world.effects["fast"] = {.speed = 1.3};
  world.effects["diverges"] = {.speed = 1.5, .loss_factor = 4};
  world.effects["nan"] = {.speed = 1.5, .nan_after = 1500};
  world.effects["broken"] = {.throws = "no kernel for this\nbacktrace line"};
  world.effects["unmakeable"] = {.throws_on_make = "no such device"};
  world.effects["nothing"] = {};
  world.effects["fine"] = {.speed = 1.1};
  std::vector<Tactic> tactics;
  for (const char* id : {"slow", "fast", "diverges", "nan", "broken", "unmakeable", "nothing", "fine"}) {
    tactics.push_back(fake::tactic(id));
  }
  const AuditReport report = Audit(fake::workload(world), tactics, fake::options(world)).run();

  const auto reason = [&](const char* id) { return report.find(id)->verdict.reason; };
  CHECK(reason("slow").starts_with("rejected: slower, 0.11x"));
  CHECK(reason("fast").starts_with("kept: 1."));
  CHECK(reason("diverges").starts_with("rejected: loss parity failed"));
  CHECK(reason("nan").starts_with("rejected: loss parity failed: nan against"));
  CHECK(reason("broken") == "rejected: it threw: no kernel for this");
  CHECK(reason("unmakeable") == "rejected: it threw: no such device");
  CHECK(reason("nothing").starts_with("rejected: no gain shown"));
  CHECK(report.find("fast")->verdict.ratio == Approx(1.3).epsilon(0.02));
  CHECK(report.find("fine")->verdict.ratio == Approx(1.1).epsilon(0.02));
  CHECK(report.find("fine")->verdict.kept());

  REQUIRE(report.together);
  CHECK(report.together->members == std::vector<std::string>{"fast", "fine"});
  CHECK(report.together->verdict.ratio == Approx(1.43).epsilon(0.03));
  CHECK(report.recommendation.tactics == report.together->members);
  CHECK(report.recommendation.ratio == report.together->verdict.ratio);

  CHECK(report.baseline.samples_per_second() == Approx(1000).epsilon(0.02));
  CHECK(report.baseline.data_wait_share() == Approx(0.03));
  CHECK(report.baseline.peak_bytes() == 100 << 20);
  CHECK(report.baseline.step_seconds(0.5) == Approx(0.01).epsilon(0.02));
  CHECK(report.elapsed_seconds == Approx(world.now));
  CHECK(report.check().empty());
}

TEST_CASE("arms alternate A B, B A, each with its untimed steps first, and both are made afresh") {
  fake::World world;
  world.noise = 0;
  world.effects["x"] = {.speed = 1.25};
  AuditOptions options = fake::options(world);
  options.steps_per_round = 20;
  options.warmup_steps = 2;
  options.rounds = options.rules.min_rounds = 3;
  const AuditReport report = Audit(fake::workload(world), {fake::tactic("x")}, options).run();
  const std::vector<std::string> expected = {
      "make baseline", "baseline:1",  "baseline:1", "baseline:20", "baseline:20", "baseline:20",  // recorded
      "make baseline", "baseline:1",  "baseline:1", "make x",      "x:1",         "x:1",          // warm-up of both
      "baseline:1",    "baseline:20", "x:1",        "x:20",                                       // A B
      "x:1",           "x:20",        "baseline:1", "baseline:20",                                // B A
      "baseline:1",    "baseline:20", "x:1",        "x:20"};                                      // A B
  CHECK(world.calls == expected);
  const auto& rounds = report.tactics[0].raw.rounds;
  CHECK_FALSE(rounds[0].candidate_first);
  CHECK(rounds[1].candidate_first);
  CHECK(report.tactics[0].verdict.ratio == Approx(1.25));
}

TEST_CASE("a hopeless candidate gets few samples and few rounds") {
  fake::World world;
  world.effects["slow"] = {.speed = 1 / 50.0};
  AuditOptions options = fake::options(world);
  options.slow_factor = 2;
  const AuditReport report = Audit(fake::workload(world), {fake::tactic("slow")}, options).run();
  const TacticResult& slow = report.tactics[0];
  CHECK(slow.verdict.rounds == 3);
  CHECK(slow.raw.note == "stopped after 3 rounds: more could not save it");
  for (const AbRound& round : slow.raw.rounds) {
    CHECK(round.candidate.timed.seconds < 2.2);  // a baseline's round takes 1 s
    CHECK(round.candidate.timed.samples < round.baseline.timed.samples / 10);
  }
}

TEST_CASE("process-wide switches are on for the candidate alone, and off after an exception") {
  fake::World world;
  bool on = false;
  Tactic threads = fake::tactic("threads");
  threads.enter = [&] { on = true; };
  threads.leave = [&] { on = false; };
  Workload workload = fake::workload(world);
  const MakeRunner make = workload.make;
  std::vector<std::pair<std::string, bool>> seen;
  struct Watching : Runner {
    std::unique_ptr<Runner> inner;
    std::function<void()> watch;
    RoundResult run(int64_t steps) override {
      watch();
      return inner->run(steps);
    }
  };
  workload.make = [&](const TacticSet& set) -> std::unique_ptr<Runner> {
    const auto note = [&seen, &on, name = set.to_string()] { seen.emplace_back(name, on); };
    note();
    auto runner = std::make_unique<Watching>();
    runner->inner = make(set);
    runner->watch = note;
    return runner;
  };
  world.effects["threads"] = {.speed = 1.2};
  Audit(workload, {threads}, fake::options(world)).run();
  CHECK(std::any_of(seen.begin(), seen.end(), [](const auto& s) { return s.second; }));
  for (const auto& [name, was_on] : seen) CHECK(was_on == (name == "threads"));

  world.effects["threads"].throws = "boom";
  CHECK(Audit(workload, {threads}, fake::options(world)).run().tactics[0].verdict.reason == "rejected: it threw: boom");
  CHECK_FALSE(on);
}

TEST_CASE("of several tactics on one axis only the best joins the others") {
  fake::World world;
  world.effects["threads-1"] = {.speed = 1.1};
  world.effects["threads-4"] = {.speed = 1.4};
  world.effects["fused"] = {.speed = 1.2};
  Tactic one = fake::tactic("threads-1"), four = fake::tactic("threads-4");
  one.axis = four.axis = "threads";
  one.value = "1";
  four.value = "4";
  const AuditReport report =
      Audit(fake::workload(world), {one, four, fake::tactic("fused")}, fake::options(world)).run();
  REQUIRE(report.together);
  CHECK(report.together->members == std::vector<std::string>{"threads-4", "fused"});
}

TEST_CASE("when together loses, the best single tactic is recommended, and the text says so") {
  fake::World world;
  world.effects["a"] = {.speed = 1.3};
  world.effects["b"] = {.speed = 1.2};
  Workload workload = fake::workload(world);
  const MakeRunner make = workload.make;
  SECTION("slower than the best one") {
    world.effects["clash"] = {.speed = 0.7};
    workload.make = [&](const TacticSet& set) {
      TacticSet more = set;
      if (set.has("a") && set.has("b")) more.add("clash");
      return make(more);
    };
    const AuditReport report = Audit(workload, {fake::tactic("a"), fake::tactic("b")}, fake::options(world)).run();
    CHECK(report.recommendation.tactics == std::vector<std::string>{"a"});
    CHECK(report.recommendation.text.find("less than the best of them: switch on Tactic a alone, 1.") !=
          std::string::npos);
  }
  SECTION("throws") {
    workload.make = [&](const TacticSet& set) {
      if (set.has("a") && set.has("b")) throw std::runtime_error("a and b cannot work together");
      return make(set);
    };
    const AuditReport report = Audit(workload, {fake::tactic("a"), fake::tactic("b")}, fake::options(world)).run();
    CHECK(report.recommendation.tactics == std::vector<std::string>{"a"});
    CHECK(report.recommendation.text.find("a and b cannot work together") != std::string::npos);
  }
}

TEST_CASE("the time budget is shared, and what does not fit says so") {
  fake::World world;
  std::vector<Tactic> tactics;
  for (int i = 0; i < 4; ++i) tactics.push_back(fake::tactic("t" + std::to_string(i)));
  AuditOptions options = fake::options(world);
  SECTION("shares") {
    options.budget_seconds = 60;  // 8 rounds of 2 arms for 4 tactics would take 64 s, beside the baseline's 8
    const AuditReport report = Audit(fake::workload(world), tactics, options).run();
    for (const TacticResult& t : report.tactics) {
      CHECK(t.verdict.rounds >= 5);
      CHECK(t.verdict.outcome == Outcome::rejected);
    }
    CHECK(report.tactics[0].verdict.rounds < 8);
    CHECK(report.tactics[0].raw.note.find("share of the time budget") != std::string::npos);
    CHECK(world.now <= 62);
  }
  SECTION("spent") {
    options.budget_seconds = 20;
    const AuditReport report = Audit(fake::workload(world), tactics, options).run();
    CHECK(report.tactics[3].verdict.reason == "not measured: the time budget of 20 s was spent");
    CHECK(report.recommendation.tactics.empty());
    CHECK(world.now <= 23);
  }
}

TEST_CASE("the batch-size curve and the loader's ceiling are recorded, failures too") {
  fake::World world;
  Workload workload = fake::workload(world);
  workload.batch_sizes = {5, 10, 4096};
  workload.make_with_batch_size = [&](int64_t batch) -> std::unique_ptr<Runner> {
    if (batch > 1000) throw std::runtime_error("out of memory");
    return std::make_unique<fake::FakeRunner>(world, TacticSet{}, batch);
  };
  workload.loader_ceiling = [] { return LoaderCeiling{5000, 100}; };
  AuditReport report = Audit(workload, {}, fake::options(world)).run();
  REQUIRE(report.batch_curve.size() == 3);
  CHECK(report.batch_curve[0].samples_per_second() == Approx(1000).epsilon(0.02));
  CHECK(report.batch_curve[0].rounds[0].samples == Approx(500).epsilon(0.05));
  CHECK(report.batch_curve[2].rounds.empty());
  CHECK(report.batch_curve[2].error == "out of memory");
  CHECK(report.loader_ceiling->samples_per_second == 5000);
  CHECK(report.recommendation.text.starts_with("Nothing that was tried pays here"));

  workload.loader_ceiling = []() -> LoaderCeiling { throw std::runtime_error("no file"); };
  report = Audit(workload, {}, fake::options(world)).run();
  CHECK_FALSE(report.loader_ceiling);
  CHECK(report.loader_error == "no file");
}

TEST_CASE("what the baseline throws, and a runner that reports nonsense, come out") {
  fake::World world;
  Workload workload = fake::workload(world);
  workload.make = [](const TacticSet&) { return std::unique_ptr<Runner>(); };
  CHECK_THROWS_AS(Audit(workload, {}, fake::options(world)).run(), StateError);
  struct Nonsense : Runner {
    RoundResult run(int64_t) override { return {}; }
  };
  workload.make = [](const TacticSet&) { return std::make_unique<Nonsense>(); };
  CHECK_THROWS_AS(Audit(workload, {}, fake::options(world)).run(), StateError);
}

TEST_CASE("settings that cannot work are refused before anything runs") {
  fake::World world;
  const Workload good = fake::workload(world);
  const auto refuses = [&](auto change) {
    Workload workload = good;
    std::vector<Tactic> tactics = {fake::tactic("a")};
    AuditOptions options = fake::options(world);
    change(workload, tactics, options);
    CHECK_THROWS_AS(Audit(workload, tactics, options), ConfigError);
  };
  refuses([](auto& w, auto&, auto&) { w.name.clear(); });
  refuses([](auto& w, auto&, auto&) { w.make = nullptr; });
  refuses([](auto& w, auto&, auto&) { w.batch_sizes = {8}; });
  refuses([](auto&, auto& t, auto&) { t.push_back(fake::tactic("a")); });
  refuses([](auto&, auto& t, auto&) { t.push_back(fake::tactic("together")); });
  refuses([](auto&, auto& t, auto&) { t.push_back(fake::tactic("")); });
  refuses([](auto&, auto&, auto& o) { o.rounds = 4; });
  refuses([](auto&, auto&, auto& o) { o.warmup_steps = 0; });
  refuses([](auto&, auto&, auto& o) { o.settle_steps = -1; });
  refuses([](auto&, auto&, auto& o) { o.seconds_per_round = 0; });
  refuses([](auto&, auto&, auto& o) { o.budget_seconds = 0; });
  refuses([](auto&, auto&, auto& o) { o.slow_factor = 0.5; });
  refuses([](auto&, auto&, auto& o) { o.min_gain = -1; });
  refuses([](auto&, auto&, auto& o) { o.loss_tolerance = -1; });
  CHECK(count_calls(world, "make") == 0);
}

TEST_CASE("a tactic set knows ids, axes and values") {
  TacticSet set;
  CHECK(set.to_string() == "baseline");
  set.add("bf16");
  set.add("threads-1", "1", "threads");
  set.add("threads-4", "4", "threads");
  CHECK(set.to_string() == "bf16 + threads-4");
  CHECK(set.value("threads") == "4");
  CHECK(set.has("bf16"));
  CHECK_FALSE(set.has("threads-1"));
  CHECK_FALSE(set.has(""));
}

}  // namespace
}  // namespace saturate::audit
