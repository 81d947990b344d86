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

// Three ways to trade time for memory.
Workload with_memory_tactics(fake::World& world) {
  world.effects["half"] = {.speed = 0.9, .memory = 0.54};
  world.effects["all"] = {.speed = 0.8, .memory = 0.2};
  world.effects["silly"] = {.speed = 0.7, .memory = 0.6};
  Workload workload = fake::workload(world);
  workload.memory_tactics = [] {
    return std::vector<Tactic>{fake::tactic("half"), fake::tactic("all"), fake::tactic("silly")};
  };
  return workload;
}

TEST_CASE("the memory curve is measured in turns with the baseline, before the tactics, and makes none of them kept") {
  fake::World world;
  const Workload workload = with_memory_tactics(world);
  world.effects["fast"] = {.speed = 1.3};
  AuditOptions options = fake::options(world);
  options.steps_per_round = 20;
  options.warmup_steps = 1;
  const AuditReport report = Audit(workload, {fake::tactic("fast")}, options).run();

  const auto first = std::find(world.calls.begin(), world.calls.end(), "make half");
  REQUIRE(first - world.calls.begin() >= 2);
  const std::vector<std::string> calls(first - 2, first + 15);
  const std::vector<std::string> expected = {
      "make baseline", "baseline:1",  "make half",  "half:1",       // warm-up of both
      "baseline:1",    "baseline:10", "half:1",     "half:10",      // A B, half as long as a tactic's rounds
      "half:1",        "half:10",     "baseline:1", "baseline:10",  // B A
      "baseline:1",    "baseline:10", "half:1",     "half:10",      // A B
      "make baseline"};                                             // the next point
  CHECK(calls == expected);
  CHECK(std::find(world.calls.begin(), world.calls.end(), "make silly") <
        std::find(world.calls.begin(), world.calls.end(), "make fast"));

  REQUIRE(report.memory_curve.size() == 3);
  const MemoryPoint& half = report.memory_curve[0];
  CHECK(half.label == "Tactic half");
  CHECK(half.how_to_apply == "use(half)");
  CHECK(half.memory() == Approx(0.54));
  CHECK(half.speed() == Approx(0.9).epsilon(0.02));
  CHECK(half.speed_range().contains(half.speed()));
  CHECK(half.speed_range().low < half.speed_range().high);
  CHECK(half.samples_per_second() == Approx(900).epsilon(0.02));
  CHECK(half.baseline_peak_bytes() == 100 << 20);
  CHECK(report.memory_note.empty());
  const auto front = memory_front(report.memory_curve);
  REQUIRE(front.size() == 2);
  CHECK(front[0] == &report.memory_curve[0]);
  CHECK(front[1] == &report.memory_curve[1]);
  CHECK(best_trade(report.memory_curve) == &report.memory_curve[1]);
  CHECK(report.recommendation.tactics == std::vector<std::string>{"fast"});
  CHECK(report.recommendation.text.find("If memory is what limits, Tactic all frees 80 % of what a step allocates for "
                                        "20 % of the speed: use(all).") != std::string::npos);
  CHECK(report.tactics.size() == 1);
  CHECK(report.check().empty());
}

TEST_CASE("a point of the memory curve that fails says so, and ends nothing") {
  fake::World world;
  const Workload workload = with_memory_tactics(world);
  std::size_t measured = 2;
  SECTION("it throws") { world.effects["half"].throws = "no room\nbacktrace"; }
  SECTION("it cannot be made") { world.effects["half"].throws_on_make = "no room"; }
  SECTION("it learns something else") { world.effects["half"].loss_factor = 2; }
  SECTION("its loss is NaN") { world.effects["half"].nan_after = 100; }
  SECTION("all of them throw") {
    world.effects["half"].throws = "no room";
    world.effects["all"].throws = "neither";
    world.effects["silly"].throws = "nor here";
    measured = 0;
  }
  const AuditReport report = Audit(workload, {fake::tactic("fast")}, fake::options(world)).run();
  REQUIRE(report.memory_curve.size() == 3);
  const MemoryPoint& half = report.memory_curve[0];
  INFO(half.error);
  CHECK_FALSE(half.counts());
  const bool expected = half.error == "no room" || half.error.starts_with("it learns something else: loss ");
  CHECK(expected);
  CHECK(to_string(half) == "Tactic half: " + half.error);
  CHECK(std::size_t(report.memory_curve[1].counts()) + std::size_t(report.memory_curve[2].counts()) == measured);
  for (const MemoryPoint* point : memory_front(report.memory_curve)) CHECK(point != &half);
  CHECK(report.tactics[0].verdict.rounds > 0);
  CHECK(report.check().empty());
}

TEST_CASE("the memory curve takes a limited share of the time, and says why where there is none") {
  fake::World world;
  Workload workload = with_memory_tactics(world);
  AuditOptions options = fake::options(world);
  const auto note = [&] { return Audit(workload, {}, options).run().memory_note; };
  SECTION("share") {
    options.budget_seconds = 30;  // 15 %: 4.5 s; a point takes 3 rounds of two arms and half a second
    world.samples_per_second = 1000;
    const AuditReport report = Audit(workload, {}, options).run();
    CHECK(report.memory_curve[0].counts());
    CHECK(report.memory_curve[2].error == "not measured: the curve's share of the time budget was spent");
    CHECK(world.now <= 8.2 + 4.5 + 1.3);  // the baseline's rounds, the share, and the point that was begun within it
  }
  SECTION("no parts") {
    workload.memory_tactics = [] { return std::vector<Tactic>(); };
    CHECK(note().find("the model marks no parts") != std::string::npos);
  }
  SECTION("no way to find out") {
    workload.memory_tactics = []() -> std::vector<Tactic> { throw std::runtime_error("no file\nmore"); };
    CHECK(note() == "it threw: no file");
  }
  SECTION("no peak") {
    struct Blind : Runner {
      std::unique_ptr<Runner> inner;
      RoundResult run(int64_t steps) override {
        RoundResult round = inner->run(steps);
        round.peak_bytes = 0;
        return round;
      }
    };
    workload.make = [make = workload.make](const TacticSet& set) {
      auto blind = std::make_unique<Blind>();
      blind->inner = make(set);
      return blind;
    };
    CHECK(note() == "not measured: the runner reports no peak memory");
    CHECK(count_calls(world, "make") == 1);
  }
  SECTION("not asked for") {
    workload.memory_tactics = nullptr;
    CHECK(note().empty());
  }
}

TEST_CASE("one step's memory is recorded, thinned with its peak kept, and its failure ends nothing") {
  fake::World world;
  Workload workload = fake::workload(world);
  workload.step_memory = [] {
    MemoryReport memory;
    memory.devices.push_back({.device = "cpu"});
    memory.timeline = {
        .devices = {"cpu"}, .phases = {"forward", "backward"}, .marks = {""}, .samples = {}, .seconds = 2};
    for (int64_t i = 0; i < 20000; ++i) {
      memory.timeline.samples.push_back({static_cast<double>(i) * 1e-4, 0, i / 10000, 0, {}});
      memory.timeline.samples.back().memory[MemoryKind::activations] = i == 7777 ? 5000000 : i % 100;
    }
    return memory;
  };
  AuditReport report = Audit(workload, {}, fake::options(world)).run();
  REQUIRE(report.step_memory);
  CHECK(report.step_memory->timeline.samples.size() <= 420);
  CHECK(report.step_memory->timeline.samples.size() >= 200);
  CHECK(report.step_memory->timeline.peak_bytes() == 5000000);
  CHECK(report.step_memory_error.empty());

  workload.step_memory = []() -> MemoryReport { throw std::runtime_error("the profiler runs\nmore"); };
  report = Audit(workload, {fake::tactic("a")}, fake::options(world)).run();
  CHECK_FALSE(report.step_memory);
  CHECK(report.step_memory_error == "the profiler runs");
  CHECK(report.tactics[0].verdict.rounds > 0);
}

TEST_CASE("the memory front leaves out what is beaten in both, by a point or by the plain step") {
  const auto point = [](double memory, double speed) {
    AbRound round;
    round.baseline.timed = {.seconds = 1, .steps = 1, .samples = 1000, .peak_bytes = 1000};
    round.candidate.timed = {
        .seconds = 1 / speed, .steps = 1, .samples = 1000, .peak_bytes = std::llround(1000 * memory)};
    return MemoryPoint{"p", "", {round}, ""};
  };
  // Beaten: 1.2 at 0.9 by the plain step, 0.8 at 0.7 by 0.5 at 0.8.
  const std::vector<MemoryPoint> curve = {point(0.5, 0.8), point(1.2, 0.9), point(0.8, 0.7), point(0.9, 0.99),
                                          point(0.2, 0.5)};
  const auto front = memory_front(curve);
  REQUIRE(front.size() == 3);
  CHECK(front[0] == &curve[3]);
  CHECK(front[1] == &curve[0]);
  CHECK(front[2] == &curve[4]);
  CHECK(best_trade(curve) == &curve[4]);  // 0.4 against 0.625
  CHECK(memory_front({point(1, 1)}).empty());
  CHECK(best_trade({point(0.95, 1)}) == nullptr);   // too little to say a sentence about
  CHECK(best_trade({point(0.5, 0.4)}) == nullptr);  // half the memory at less than half the speed: take half the batch
  CHECK(memory_advice({}).empty());
  CHECK(memory_advice({point(0.5, 1.001)}) ==
        "If memory is what limits, p frees 50 % of what a step allocates at no loss of speed that shows.");
  CHECK_FALSE(MemoryPoint{"p", "", {AbRound{}}, ""}.counts());  // rounds that took no time
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
