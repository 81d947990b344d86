// SPDX-License-Identifier: Apache-2.0
#include "saturate/observe/profile.hpp"

#include <ftw.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <filesystem>
#include <fstream>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "saturate/error.hpp"
#include "saturate/observe/memory_meter.hpp"
#include "saturate/observe/op_counter.hpp"
#include "saturate/observe/range.hpp"
#include "saturate/optim/adamw.hpp"
#include "saturate/optim/sgd.hpp"
#include "saturate/trace/read_trace.hpp"
#include "saturate/trace/self_time.hpp"
#include "saturate/trace/timeline.hpp"
#include "saturate/trainer.hpp"
#include "support.hpp"

namespace st = saturate;
using support::Batch;
using support::Mlp;

namespace {

std::vector<const st::TraceEvent*> named(const st::Trace& trace, const std::string& name,
                                         st::EventKind kind = st::EventKind::op) {
  std::vector<const st::TraceEvent*> result;
  for (const st::TraceEvent& event : trace.events) {
    if (event.kind == kind && trace.text(event.name) == name) result.push_back(&event);
  }
  return result;
}

std::vector<int64_t> steps_of(const st::Trace& trace) {
  std::vector<int64_t> result;
  for (const st::TraceEvent& event : trace.events) {
    const std::string& name = trace.text(event.name);
    if (event.kind == st::EventKind::annotation && name.starts_with("ProfilerStep#")) {
      result.push_back(std::stoll(name.substr(13)));
    }
  }
  return result;
}

bool inside(const st::TraceEvent& inner, const st::TraceEvent& outer) {
  return inner.start_ns >= outer.start_ns && inner.end_ns() <= outer.end_ns();
}

bool profiler_is_on() { return torch::autograd::profiler::profilerEnabled(); }

// What the profiler left behind would show here: a second one could not begin.
void check_all_is_off() {
  CHECK_FALSE(profiler_is_on());
  CHECK(st::profile([] { torch::ones({2}); }).events.size() > 0);
}

using Windows = std::vector<std::vector<int64_t>>;

st::TraceSink into(Windows& windows) {
  return [&windows](const st::Trace& trace) { windows.push_back(steps_of(trace)); };
}

std::vector<Batch> batches(int64_t count) {
  std::vector<Batch> result;
  for (int64_t i = 0; i < count; ++i) result.push_back(support::classes(8, i));
  return result;
}

auto make_trainer(Mlp& net, auto... more) {
  return st::Trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.01}), st::CrossEntropy{}, std::move(more)...);
}

// Not std::filesystem::remove_all: LibTorch's wheel exports a broken one, which wins over the system's.
class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "saturate_profile_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~Folder() {
    ::nftw(
        path_.c_str(), [](const char* name, const struct stat*, int, FTW*) { return ::remove(name); }, 16,
        FTW_DEPTH | FTW_PHYS);
  }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

// A loader that does not know its length.
struct Stream {
  std::vector<Batch> batches;
  struct It {
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    const std::vector<Batch>* batches = nullptr;
    std::size_t at = 0;
    const Batch& operator*() const { return (*batches)[at]; }
    It& operator++() { return ++at, *this; }
    It operator++(int) { return {batches, at++}; }
    bool operator==(const It& other) const { return at == other.at; }
  };
  It begin() const { return {&batches, 0}; }
  It end() const { return {&batches, batches.size()}; }
};

}  // namespace

TEST_CASE("profile: operators with shapes, values, FLOPs and sequence numbers, in memory") {
  const at::Tensor x = torch::randn({5, 7}), w = torch::randn({3, 7}, torch::requires_grad());
  const at::Tensor bias = torch::zeros({3}, torch::requires_grad());
  const st::Trace trace = st::profile([&] {
    const at::Tensor y = torch::linear(x, w, bias);
    at::cat({y, y}, 1).sum().backward();
  });
  const auto addmm = named(trace, "aten::addmm");
  REQUIRE(addmm.size() == 1);
  const st::TraceDetails& details = *trace.details_of(*addmm[0]);
  CHECK(trace.text(details.shapes) == "[[3],[5,7],[7,3],[],[]]");
  CHECK(trace.text(details.strides) == "[[1],[7,1],[1,7],[],[]]");
  CHECK(trace.text(details.types) == R"(["float","float","float","Scalar","Scalar"])");
  CHECK(trace.text(details.values) == R"(["","","","1","1"])");
  CHECK(details.flops == 2 * 5 * 7 * 3);
  CHECK(details.sequence >= 0);
  CHECK(details.external_id > 0);

  const auto cat = named(trace, "aten::cat");
  REQUIRE(cat.size() == 1);
  CHECK(trace.text(trace.details_of(*cat[0])->shapes) == "[[[5,3],[5,3]],[]]");
  CHECK(trace.text(trace.details_of(*cat[0])->types) == R"(["TensorList","Scalar"])");

  const auto backward = named(trace, "AddmmBackward0");
  REQUIRE(backward.size() == 1);
  CHECK(trace.details_of(*backward[0])->sequence == details.sequence);
  const bool arrow = std::any_of(trace.flows.begin(), trace.flows.end(), [&](const st::TraceFlow& flow) {
    return flow.forward_backward && !flow.finish && flow.time_ns == addmm[0]->start_ns;
  });
  CHECK(arrow);
  CHECK(steps_of(trace) == std::vector<int64_t>{0});
  CHECK((trace.record_shapes && trace.with_flops && !trace.profile_memory));
  CHECK(trace.rank == 0);
  CHECK(named(trace, "[memory]", st::EventKind::memory).empty());
  CHECK_FALSE(profiler_is_on());
}

TEST_CASE("profile: what is left out of the record is not there; allocations when they are asked for") {
  const st::Trace bare = st::profile(
      [] {
        torch::ones({4, 4}).mm(torch::ones({4, 4}));
      },
      {.shapes = false, .flops = false});
  const auto mm = named(bare, "aten::mm");
  REQUIRE(mm.size() == 1);
  CHECK(bare.details_of(*mm[0])->shapes == 0);
  CHECK(bare.details_of(*mm[0])->flops == -1);

  const st::Trace with = st::profile([] { torch::empty({1000}); }, {.memory = true});
  const auto memory = named(with, "[memory]", st::EventKind::memory);
  REQUIRE(memory.size() == 2);
  CHECK(with.details_of(*memory[0])->bytes == 4000);
  CHECK(with.details_of(*memory[1])->bytes == -4000);
  CHECK(with.details_of(*memory[0])->address == with.details_of(*memory[1])->address);
  CHECK(with.details_of(*memory[0])->device_type == 0);
  CHECK(with.details_of(*memory[0])->total_allocated - with.details_of(*memory[1])->total_allocated == 4000);
}

TEST_CASE("profile: ranges lie in their steps, self times add up, the file reads back the same") {
  int calls = 0;
  const st::Trace trace = st::profile(
      [&] {
        ++calls;
        const st::Range outer("outer");
        const at::Tensor x = torch::ones({8, 8});
        const st::Range inner("inner \"é\"");
        x.mm(x);
      },
      {}, /*steps=*/3, /*warmup=*/2);
  CHECK(calls == 5);
  CHECK(steps_of(trace) == std::vector<int64_t>{2, 3, 4});
  const auto outer = named(trace, "outer", st::EventKind::annotation);
  const auto inner = named(trace, "inner \"é\"", st::EventKind::annotation);
  const auto mm = named(trace, "aten::mm");
  REQUIRE((outer.size() == 3 && inner.size() == 3 && mm.size() == 3));
  for (int i = 0; i < 3; ++i) {
    const auto step = named(trace, "ProfilerStep#" + std::to_string(i + 2), st::EventKind::annotation);
    REQUIRE(step.size() == 1);
    CHECK((inside(*outer[i], *step[0]) && inside(*inner[i], *outer[i]) && inside(*mm[i], *inner[i])));
  }

  const st::Timeline timeline(trace);
  CHECK(timeline.steps().size() == 3);
  int64_t self = 0, roots = 0;
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    const st::Timeline::Node& node = timeline.nodes()[i];
    if (!node.span) continue;
    CHECK(node.self_ns >= 0);
    self += node.self_ns;
    if (node.parent == st::Timeline::none) roots += node.end_ns - node.begin_ns;
  }
  CHECK(self == roots);

  const Folder there;
  const auto folder = there / "profile";
  st::TraceFolder{folder}(trace);
  const std::vector<st::Trace> read = st::read_traces((folder / "step_2").string());
  REQUIRE(read.size() == 1);
  CHECK(read[0].events.size() == trace.events.size());
  CHECK(steps_of(read[0]) == steps_of(trace));
  CHECK(read[0].rank == 0);
}

TEST_CASE("profile: an exception passes through and leaves nothing on") {
  CHECK_THROWS_AS(st::profile([] {
                    const st::Range range("broken");
                    torch::ones({2}).mm(torch::ones({3}));
                  }),
                  c10::Error);
  check_all_is_off();
  int calls = 0;
  CHECK_THROWS_AS(st::profile(
                      [&] {
                        if (++calls == 2) throw std::runtime_error("in warm-up");
                      },
                      {}, 1, 3),
                  std::runtime_error);
  check_all_is_off();
  CHECK_THROWS_AS(st::profile([] {}, {}, 0), st::ConfigError);
  CHECK_THROWS_AS(st::profile([] {}, {}, 1, -1), st::ConfigError);
  check_all_is_off();
}

TEST_CASE("profile: one at a time, on whatever thread, and not beside PyTorch's own or a MemoryMeter") {
  st::profile([] {
    CHECK_THROWS_AS(st::profile([] {}), st::ConfigError);
    std::thread other([] { CHECK_THROWS_AS(st::profile([] {}), st::ConfigError); });
    other.join();
  });
  check_all_is_off();

  namespace kineto = torch::autograd::profiler;
  const kineto::ProfilerConfig config(kineto::ProfilerState::KINETO);
  kineto::prepareProfiler(config, {kineto::ActivityType::CPU});
  kineto::enableProfiler(config, {kineto::ActivityType::CPU});
  CHECK_THROWS_AS(st::profile([] {}), st::ConfigError);
  std::thread other([] { CHECK_THROWS_AS(st::profile([] {}), st::ConfigError); });
  other.join();
  kineto::disableProfiler();
  check_all_is_off();

  {
    const st::MemoryMeter meter;
    CHECK_THROWS_AS(st::profile([] {}), st::ConfigError);
  }
  check_all_is_off();
}

TEST_CASE("profile: operators of other threads, where they are asked for") {
  const auto elsewhere = [] {
    torch::ones({2}).tanh();
    std::thread([] { torch::ones({2}).sigmoid(); }).join();
  };
  const st::Trace here = st::profile(elsewhere);
  CHECK((named(here, "aten::tanh").size() == 1 && named(here, "aten::sigmoid").empty()));
  const st::Trace everywhere = st::profile(elsewhere, {.all_threads = true});
  const auto tanh = named(everywhere, "aten::tanh"), sigmoid = named(everywhere, "aten::sigmoid");
  REQUIRE((tanh.size() == 1 && sigmoid.size() == 1));
  CHECK(tanh[0]->lane != sigmoid[0]->lane);
  check_all_is_off();
}

TEST_CASE("Profiler: records exactly the windows that its schedule asks for") {
  struct Case {
    st::ProfileSchedule schedule;
    int64_t steps;
    Windows windows;
  };
  const std::vector<Case> cases{
      {{.skip = 0, .warmup = 0, .record = 1}, 4, {{0}}},
      {{.skip = 2, .warmup = 1, .record = 2}, 9, {{3, 4}}},
      {{.skip = 2, .warmup = 1, .record = 2}, 5, {{3, 4}}},
      {{.skip = 2, .warmup = 1, .record = 2}, 4, {{3}}},  // finish() gives what is whole
      {{.skip = 2, .warmup = 1, .record = 2}, 3, {}},
      {{.skip = 1, .warmup = 1, .record = 2, .repeat_every = 5}, 14, {{2, 3}, {7, 8}, {12, 13}}},
      {{.skip = 1, .warmup = 1, .record = 2, .repeat_every = 5, .max_windows = 2}, 30, {{2, 3}, {7, 8}}},
      {{.skip = 0, .warmup = 0, .record = 2, .repeat_every = 2}, 5, {{0, 1}, {2, 3}, {4}}},
      {{.skip = 0, .warmup = 1, .record = 1, .repeat_every = 2}, 6, {{1}, {3}, {5}}},
  };
  for (const Case& c : cases) {
    CAPTURE(c.schedule.skip, c.schedule.warmup, c.schedule.record, c.schedule.repeat_every, c.steps);
    Windows windows;
    std::vector<int64_t> operators;
    st::Profiler profiler(c.schedule, [&](const st::Trace& trace) {
      windows.push_back(steps_of(trace));
      operators.push_back(static_cast<int64_t>(named(trace, "aten::tanh").size()));
    });
    for (int64_t i = 0; i < c.steps; ++i) {
      torch::ones({2}).tanh();
      profiler.step();
    }
    profiler.finish();
    CHECK(windows == c.windows);
    CHECK(profiler.windows() == static_cast<int64_t>(c.windows.size()));
    CHECK(profiler.steps() == c.steps);
    for (std::size_t i = 0; i < operators.size(); ++i) {
      CHECK(operators[i] == static_cast<int64_t>(c.windows[i].size()));
    }
    CHECK_FALSE(profiler_is_on());
  }
}

TEST_CASE("Profiler: settings that cannot work are refused") {
  const auto refuse = [](const st::ProfileSchedule& schedule) {
    CHECK_THROWS_AS(st::Profiler(schedule, [](const st::Trace&) {}), st::ConfigError);
    CHECK_THROWS_AS(st::ProfileWindow(schedule, [](const st::Trace&) {}), st::ConfigError);
  };
  refuse({.skip = -1});
  refuse({.warmup = -1});
  refuse({.record = 0});
  refuse({.repeat_every = -5});
  refuse({.max_windows = -1});
  refuse({.warmup = 1, .record = 2, .repeat_every = 2});
  refuse({.max_windows = 3});
  CHECK_THROWS_AS(st::Profiler({}, nullptr), st::ConfigError);
  CHECK_THROWS_AS(st::ProfileWindow({}, nullptr), st::ConfigError);
}

TEST_CASE("Profiler: turns off when it goes away in a window, when the sink throws, and refuses another thread") {
  {
    st::Profiler profiler({.skip = 0, .warmup = 0, .record = 5}, [](const st::Trace&) { FAIL("no window is whole"); });
    profiler.step();
    CHECK(profiler.recording());
  }
  check_all_is_off();
  {
    st::Profiler profiler({.skip = 0, .warmup = 2, .record = 5}, [](const st::Trace&) { FAIL("only prepared"); });
    profiler.step();
  }
  check_all_is_off();
  {
    st::Profiler profiler({.skip = 0, .warmup = 0, .record = 1},
                          [](const st::Trace&) { throw std::runtime_error("the disk is full"); });
    CHECK_THROWS_AS(profiler.step(), std::runtime_error);
    check_all_is_off();
  }
  {
    st::Profiler profiler({.skip = 0, .warmup = 0, .record = 1}, [](const st::Trace&) {});
    std::thread other([&] { CHECK_THROWS_AS(profiler.step(), st::StateError); });
    other.join();
  }
}

TEST_CASE("ProfileWindow: a Trainer's steps with the parts of each, over epochs and evaluations") {
  Windows windows;
  std::vector<st::Trace> traces;
  Mlp net = support::seeded(1);
  auto trainer =
      make_trainer(net, st::ClipGradNorm{1.0},
                   st::ProfileWindow({.skip = 2, .warmup = 0, .record = 4, .repeat_every = 6}, [&](st::Trace trace) {
                     windows.push_back(steps_of(trace));
                     traces.push_back(std::move(trace));
                   }));
  auto loader = batches(5), validation = batches(3);
  const auto run = [&](auto& from) { trainer.fit(from, validation, {.epochs = 3, .evaluate_every = 3}); };
  SECTION("of a known length") { run(loader); }
  SECTION("of an unknown one") {
    Stream stream{loader};
    run(stream);
  }
  CHECK(windows == Windows{{2, 3, 4, 5}, {8, 9, 10, 11}, {14}});
  for (const st::Trace& trace : traces) {
    const st::Timeline timeline(trace);
    for (const st::TraceStep& step : timeline.steps()) {
      std::vector<std::string> parts;
      for (const st::TraceEvent& event : trace.events) {
        if (event.kind == st::EventKind::annotation && event.start_ns >= step.begin_ns &&
            event.end_ns() <= step.end_ns && !trace.text(event.name).starts_with("ProfilerStep#")) {
          if (parts.empty() || parts.back() != trace.text(event.name)) parts.push_back(trace.text(event.name));
        }
      }
      CHECK(parts == std::vector<std::string>{"data wait", "copy to device", "forward", "backward", "reduce", "clip",
                                              "optimizer"});
    }
  }
  check_all_is_off();
}

TEST_CASE("ProfileWindow: the evaluation at an epoch's end is not recorded") {
  std::vector<st::Trace> traces;
  Mlp net = support::seeded(1);
  auto trainer = make_trainer(net, st::ProfileWindow({.skip = 0, .warmup = 0, .record = 6},
                                                     [&](st::Trace trace) { traces.push_back(std::move(trace)); }));
  auto loader = batches(4), validation = batches(30);
  trainer.fit(loader, validation, {.epochs = 2});
  REQUIRE(traces.size() == 1);
  CHECK(steps_of(traces[0]) == std::vector<int64_t>{0, 1, 2, 3, 4, 5});
  CHECK(named(traces[0], "forward", st::EventKind::annotation).size() == 6);
  CHECK(named(traces[0], "aten::tanh").size() == 6);
}

TEST_CASE("ProfileWindow: an exception in fit ends the profile, and the next fit takes the window anew") {
  struct Thrower {
    int64_t at = 3, seen = 0;
    void on_step(const st::StepEvent&) {
      if (++seen == at) throw std::runtime_error("stop");
    }
  };
  Windows windows;
  Mlp net = support::seeded(1);
  auto trainer = make_trainer(net, st::ProfileWindow({.skip = 1, .warmup = 0, .record = 4}, into(windows)), Thrower{});
  auto loader = batches(6);
  CHECK_THROWS_AS(trainer.fit(loader, {.epochs = 1}), std::runtime_error);
  CHECK(windows.empty());
  check_all_is_off();
  trainer.fit(loader, {.epochs = 1});
  CHECK(windows == Windows{{3, 4, 5, 6}});
  check_all_is_off();
}

TEST_CASE("ProfileWindow: a window that meets another profiler is an error at first, and left out later") {
  namespace kineto = torch::autograd::profiler;
  const kineto::ProfilerConfig config(kineto::ProfilerState::KINETO);
  const auto on = [&] {
    kineto::prepareProfiler(config, {kineto::ActivityType::CPU});
    kineto::enableProfiler(config, {kineto::ActivityType::CPU});
  };
  Windows windows;
  st::Profiler profiler({.skip = 1, .warmup = 0, .record = 1, .repeat_every = 3}, into(windows));
  on();
  CHECK_THROWS_AS(profiler.step(), st::ConfigError);
  kineto::disableProfiler();

  st::Profiler patient({.skip = 1, .warmup = 0, .record = 1, .repeat_every = 3}, into(windows));
  patient.step();
  patient.step();
  CHECK(windows == Windows{{1}});
  on();
  for (int i = 0; i < 3; ++i) patient.step();
  kineto::disableProfiler();
  for (int i = 0; i < 5; ++i) patient.step();
  CHECK(windows == Windows{{1}, {7}});
}

TEST_CASE("ProfileWindow: between windows a step runs the same operators, and takes the same numbers") {
  const auto run = [](auto... callback) {
    Mlp net = support::seeded(1);
    auto trainer = make_trainer(net, callback...);
    auto loader = batches(3);
    trainer.fit(loader, {.epochs = 1, .log_every = 1000});
    st::OpCounter counter({.this_thread_only = true});
    trainer.fit(loader, {.epochs = 1, .log_every = 1000});
    return std::pair(counter.operators(), support::clones(net->parameters()));
  };
  struct Nothing {
    void on_step(const st::StepEvent&) {}
  };
  Windows windows;
  st::ProfileWindow waiting({.skip = 1000}, into(windows));
  st::ProfileWindow done({.skip = 0, .warmup = 0, .record = 1}, into(windows));
  const auto without = run(Nothing{});
  const auto with = run(std::ref(waiting)), after = run(std::ref(done));
  CHECK(with.first == without.first);
  CHECK(after.first == without.first);
  CHECK(windows == Windows{{0}});
  CHECK(support::same_bits(with.second, without.second));
  CHECK(support::same_bits(after.second, without.second));  // recorded steps too
}

TEST_CASE("TraceFolder: keeps the newest windows") {
  const Folder there;
  const auto folder = there / "traces";
  st::Profiler profiler({.skip = 0, .warmup = 0, .record = 1, .repeat_every = 4},
                        st::TraceFolder{.folder = folder, .gzip = false, .keep = 2});
  for (int i = 0; i < 12; ++i) profiler.step();
  profiler.finish();
  std::set<std::string> left;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) left.insert(std::filesystem::relative(entry.path(), folder).string());
  }
  CHECK(left == std::set<std::string>{"step_4/rank0.json", "step_8/rank0.json"});
  CHECK_FALSE(std::filesystem::exists(folder / "step_0"));
  std::filesystem::create_directories(folder);
  { std::ofstream(folder / "file") << "no folder"; }
  const st::Trace trace = st::profile([] {});
  CHECK_THROWS_AS(st::TraceFolder{folder / "file"}(trace), st::Error);
}
