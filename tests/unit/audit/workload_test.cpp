// SPDX-License-Identifier: Apache-2.0
// The audit on a Trainer: settings as text, and arms that train what they say.
#include "saturate/audit/workload.hpp"

#include <catch2/catch_test_macros.hpp>

#include "saturate/data/tensor_source.hpp"
#include "saturate/error.hpp"
#include "support.hpp"

namespace st = saturate;
using st::audit::PolicySettings;

TEST_CASE("policy settings are read from text and written back") {
  const std::string all =
      "fp16,channels_last,keep_pages,torch_adamw,accumulate=4,prefetch=2,threads=1,clip=0.5,skip_spikes,"
      "warmup_cosine=10:100,ema=0.99";
  CHECK(PolicySettings::parse(all).to_string() == all);
  CHECK(PolicySettings::parse("").to_string() == "none");
  CHECK(PolicySettings::parse("none").fused_optimizer);
  for (const char* bad : {"fp8", "bf16=1", "accumulate", "accumulate=0", "accumulate=4x", "clip=-1", "threads=0",
                          "bf16,fp16", "ema=1", "warmup_cosine=10", "warmup_cosine=100:10"}) {
    INFO(bad);
    CHECK_THROWS_AS(PolicySettings::parse(bad), st::ConfigError);
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
