// SPDX-License-Identifier: Apache-2.0
// The audit on a Trainer: settings as text, and arms that train what they say.
#include "saturate/audit/workload.hpp"

#include "saturate/audit/engine.hpp"

#include <catch2/catch_test_macros.hpp>

#include "saturate/data/tensor_source.hpp"
#include "saturate/error.hpp"
#include "support.hpp"

namespace st = saturate;
using st::audit::PolicySettings;

TEST_CASE("policy settings are read from text and written back") {
  const std::string all =
      "fp16,channels_last,keep_pages,torch_adamw,accumulate=4,recompute=every-3,prefetch=2,threads=1,clip=0.5,skip_"
      "spikes,"
      "warmup_cosine=10:100,ema=0.99";
  CHECK(PolicySettings::parse(all).to_string() == all);
  CHECK(PolicySettings::parse("").to_string() == "none");
  CHECK(PolicySettings::parse("none").fused_optimizer);
  CHECK(PolicySettings::parse("recompute=all").to_string() == "recompute=all");
  CHECK(PolicySettings::parse("recompute=every-1").recompute_every == 1);
  CHECK(PolicySettings::parse("recompute=none").to_string() == "none");
  for (const char* bad : {"fp8", "bf16=1", "accumulate", "accumulate=0", "accumulate=4x", "clip=-1", "threads=0",
                          "bf16,fp16", "recompute", "recompute=some", "recompute=every-0", "recompute=every-x",
                          "recompute=every", "ema=1", "warmup_cosine=10", "warmup_cosine=100:10"}) {
    INFO(bad);
    CHECK_THROWS_AS(PolicySettings::parse(bad), st::ConfigError);
  }
}

TEST_CASE("an error in the settings names the word and what is known") {
  try {
    PolicySettings::parse("bf16,recompute=half");
    FAIL("parsed");
  } catch (const st::ConfigError& error) {
    CHECK(std::string(error.what()).find("'recompute=half' needs all, every-N or none; known are ") !=
          std::string::npos);
    CHECK(std::string(error.what()).find("recompute=every-N") != std::string::npos);
  }
}

TEST_CASE("arms of a workload start alike, and every step takes one batch, split or not") {
  const auto data = support::classes(64, 3);
  const auto make = [&](st::audit::WorkloadOptions options) {
    return st::audit::make_workload(
        std::move(options), [] { return support::Mlp(); }, st::CrossEntropy{},
        st::data::TensorSource(data.first, data.second));
  };
  const auto workload = make({.name = "mlp", .batch_size = 16});
  const auto run = [&](const char* id, const char* value) {
    st::audit::TacticSet tactics;
    if (*id != 0) tactics.add(id, value);
    return workload.make(tactics)->run(6);  // more than one epoch
  };
  const auto baseline = run("", "");
  CHECK(baseline.samples == 96);
  CHECK(baseline.loss_count == 96);
  CHECK(baseline.step_seconds.size() == 6);
  for (const auto& [id, value] : {std::pair("fused-adamw", ""), {"prefetch", ""}, {"accumulate", "4"}}) {
    const auto round = run(id, value);
    INFO(id);
    CHECK(round.samples == 96);
    CHECK(std::abs(round.mean_loss() / baseline.mean_loss() - 1) < 1e-3);
  }
  CHECK(workload.lr_advice(16).empty());
  CHECK(workload.lr_advice(64).find("lr = 0.002 instead of 0.001") != std::string::npos);  // the square root of 4
  CHECK_THROWS_AS(make({.name = "mlp", .batch_size = 6}), st::ConfigError);
  CHECK_THROWS_AS(make({.name = "", .batch_size = 8}), st::ConfigError);
  CHECK_THROWS_AS(make({.name = "mlp", .batch_size = 128}).make({})->run(1), st::DataError);
}

namespace {

// Wide against its inputs and short of parameters, so that activations are most of what a step allocates.
struct DeepImpl : torch::nn::Module {
  explicit DeepImpl(bool marked) : marked(marked) {
    for (int i = 0; i < 8; ++i) {
      blocks->push_back(torch::nn::Sequential(torch::nn::Linear(16, 16), torch::nn::GELU(), torch::nn::Tanh(),
                                              torch::nn::GELU(), torch::nn::Linear(16, 16)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    x = x.view({-1, 16});
    for (const auto& block : *blocks) {
      auto& part = *block->as<torch::nn::Sequential>();
      x = marked ? st::call(part, x) : part.forward(x);
    }
    return x.view({-1, 64, 16}).mean(1).narrow(1, 0, 4);
  }
  bool marked;
  torch::nn::ModuleList blocks = register_module("blocks", torch::nn::ModuleList());
};
TORCH_MODULE(Deep);

st::audit::Workload deep_workload(bool marked) {
  torch::manual_seed(1);
  return st::audit::make_workload(
      {.name = "deep", .batch_size = 16}, [=] { return Deep(marked); }, st::CrossEntropy{},
      st::data::TensorSource(torch::randn({64, 1024}), torch::randint(4, {64})));
}

}  // namespace

TEST_CASE("recomputing the marked parts of a workload frees memory and leaves its losses as they are, to the bit") {
  const auto workload = deep_workload(true);
  const auto ways = workload.memory_tactics();
  REQUIRE(ways.size() == 4);
  CHECK(ways[0].how_to_apply == "st::Recompute::all()");
  CHECK(ways[3].how_to_apply == "st::Recompute::every(4)");
  const auto round = [&](const st::audit::Tactic* way) {
    st::audit::TacticSet tactics;
    if (way != nullptr) tactics.add(way->id, way->value, way->axis);
    const auto runner = workload.make(tactics);
    runner->run(2);  // the optimizer's state
    return runner->run(2);
  };
  const auto plain = round(nullptr);
  int64_t before = 0;
  for (const auto& way : ways) {
    const auto less = round(&way);
    INFO(way.title);
    CHECK(less.loss_sum == plain.loss_sum);
    CHECK(less.peak_bytes > before);  // the fewer parts are recomputed, the more is kept
    CHECK(less.peak_bytes < plain.peak_bytes);
    if (before == 0) CHECK(static_cast<double>(less.peak_bytes) < 0.5 * static_cast<double>(plain.peak_bytes));
    before = less.peak_bytes;
  }
}

TEST_CASE("the audit of a workload draws its memory curve; a model without marks has none, and the report says so") {
  st::audit::AuditOptions options;
  options.rounds = options.rules.min_rounds = 2;
  options.steps_per_round = options.warmup_steps = 2;
  options.progress = [](std::string_view) {};
  for (const bool marked : {true, false}) {
    auto workload = deep_workload(marked);
    workload.batch_sizes.clear();
    workload.loader_ceiling = nullptr;
    const auto report = st::audit::Audit(workload, {}, options).run();
    if (marked) {
      REQUIRE(report.memory_curve.size() == 4);
      for (const auto& point : report.memory_curve) CHECK(point.counts());
      CHECK(report.memory_curve[0].memory() < 0.5);
      CHECK(report.memory_note.empty());
    } else {
      CHECK(report.memory_curve.empty());
      CHECK(report.memory_note.find("marks no parts") != std::string::npos);
      CHECK(report.to_html().find("marks no parts") != std::string::npos);
    }
  }
}

TEST_CASE("the memory of a workload's step is told by phase and by part") {
  const auto workload = deep_workload(true);
  const auto memory = workload.step_memory();
  for (const char* phase : {"forward", "backward", "update"}) CHECK(memory.phase(phase) != nullptr);
  CHECK(memory.memory().at_peak[st::MemoryKind::activations] > 1 << 19);
  CHECK(memory.memory().before[st::MemoryKind::parameters] == 8 * 2 * (16 * 16 + 16) * 4);
  CHECK(memory.memory().before[st::MemoryKind::optimizer_state] >= 2 * 8 * 2 * (16 * 16 + 16) * 4);
  CHECK(memory.module("blocks.3") != nullptr);
}

TEST_CASE("parts are counted once each, without those inside others and without the root; few parts give few ways") {
  using st::audit::detail::recompute_tactics;
  CHECK(recompute_tactics(0).empty());
  REQUIRE(recompute_tactics(1).size() == 1);
  CHECK(recompute_tactics(1)[0].title == "recompute all()");
  CHECK(recompute_tactics(3).size() == 3);
  CHECK(recompute_tactics(6).size() == 3);  // every(4) recomputes two of them, as every(3) does
  CHECK(recompute_tactics(24).size() == 4);

  support::Mlp net;
  st::audit::detail::PartCounter counter;
  const st::marks::Scope scope(st::marks::bind(*net), &counter);
  const at::Tensor x = torch::randn({2, 6});
  st::call(net, x);  // the root holds both
  CHECK(counter.parts() == 2);
}
