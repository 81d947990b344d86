// SPDX-License-Identifier: Apache-2.0
#include "saturate/diagnosis/diagnose.hpp"
#include "saturate/error.hpp"

#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <cmath>

namespace st = saturate;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

TEST_CASE("diagnose: nothing wrong is a verdict, with its number") {
  const st::Diagnosis compute = st::diagnose({.compute_share = 0.86, .bandwidth_share = 0.4});
  REQUIRE(compute.verdicts.size() == 1);
  CHECK(compute.verdicts[0].rule == "nothing-wrong");
  CHECK(compute.verdicts[0].symptom == "nothing wrong here: compute-bound at 86 % of the measured roof");
  CHECK(compute.verdicts[0].confidence == 1);
  CHECK(compute.faults().empty());
  const st::Diagnosis memory = st::diagnose({.training = 1, .compute_share = 0.1, .bandwidth_share = 0.81});
  CHECK(memory.verdicts[0].symptom == "nothing wrong here: memory-bound at 81 % of the measured bandwidth");
}

TEST_CASE("diagnose: nothing found says how far from the roof, and whether that is known") {
  const st::Diagnosis far = st::diagnose({.compute_share = 0.23, .bandwidth_share = 0.31});
  CHECK(far.verdicts[0].rule == "nothing-found");
  CHECK(
      far.verdicts[0].symptom ==
      "nothing found that these rules know; not compute-bound either: 23 % of the measured roof, 31 % of the measured "
      "bandwidth");
  const st::Diagnosis unknown = st::diagnose({});
  CHECK(unknown.verdicts[0].rule == "nothing-found");
  CHECK_THAT(unknown.verdicts[0].symptom, ContainsSubstring("its peaks were not measured"));
}

TEST_CASE("diagnose: what could gain most comes first, wrong numbers before all") {
  st::Facts facts{.devices = 1,
                  .host_syncs_per_step = 3,
                  .sync_stall_share = 0.1,
                  .pageable_copy_share = 0.3,
                  .layout_conversion_share = 0.2,
                  .sixteen_bit = 1,
                  .nonfinite_share = 0.05};
  CHECK(st::diagnose(facts).faults() ==
        std::vector<std::string>{"nonfinite", "pageable-copies", "layout", "host-sync"});
  facts.sync_stall_share = 0.25;
  CHECK(st::diagnose(facts).faults() ==
        std::vector<std::string>{"nonfinite", "pageable-copies", "host-sync", "layout"});
}

TEST_CASE("diagnose: a verdict quotes its numbers, what is known about them, and where they should be") {
  st::Facts facts{.devices = 1, .host_syncs_per_step = 3, .sync_stall_share = 0.125};
  facts.remarks["host_syncs_per_step"] = "most by aten::item in logging";
  const st::Diagnosis diagnosis = st::diagnose(facts);
  const st::DiagnosisVerdict* const verdict = diagnosis.find("host-sync");
  REQUIRE(verdict != nullptr);
  CHECK(verdict->gain == 0.125);
  REQUIRE(verdict->evidence.size() == 3);
  CHECK(verdict->evidence[1].text == "host_syncs_per_step is 3 (above 0.2): most by aten::item in logging");
  CHECK(verdict->evidence[2].name == "sync_stall_share");
  CHECK(verdict->evidence[2].value == 0.125);
  const std::string text = diagnosis.text();
  CHECK_THAT(text,
             ContainsSubstring("1. the host waits for the device inside of the step: at most 12.5 % of the step"));
  CHECK_THAT(text, ContainsSubstring("seen    devices is 1") && ContainsSubstring("likely  a value is read") &&
                       ContainsSubstring("try     on_log instead of on_step") && ContainsSubstring("by hand: where()"));
}

TEST_CASE("diagnose: confidence is the mean of how clear the numbers are") {
  // Threshold 5 %, clear from 40 %; the ceiling supports: 1.1 to 0.6.
  const auto confidence = [](const st::Facts& facts) { return st::diagnose(facts).find("data")->confidence; };
  CHECK(confidence({.data_wait_share = 0.225}) == Catch::Approx(0.75));
  CHECK(confidence({.data_wait_share = 0.4}) == Catch::Approx(1));
  CHECK(confidence({.data_wait_share = 0.9}) == Catch::Approx(1));
  CHECK(confidence({.data_wait_share = 0.4, .loader_ceiling_ratio = 0.85}) == Catch::Approx(0.875));
  CHECK(confidence({.data_wait_share = 0.4, .loader_ceiling_ratio = 3}) == Catch::Approx(0.75));
}

TEST_CASE("diagnose: a verdict at its threshold does not come and go") {
  const st::Facts inside{.data_wait_share = 0.045}, far_inside{.data_wait_share = 0.039};
  CHECK(st::diagnose(inside).faults().empty());
  CHECK(st::diagnose(inside, {.standing = {"data"}}).faults() == std::vector<std::string>{"data"});
  CHECK(st::diagnose(inside, {.standing = {"layout"}}).faults().empty());
  CHECK(st::diagnose(far_inside, {.standing = {"data"}}).faults().empty());
}

TEST_CASE("diagnose: the same facts give the same diagnosis") {
  const st::Facts facts{.devices = 1, .launch_bound_share = 0.3, .layout_conversion_share = 0.3, .ranks = 2};
  CHECK(st::diagnose(facts) == st::diagnose(facts));
}

TEST_CASE("diagnose: numbers that cannot be are refused") {
  CHECK_THROWS_MATCHES(st::diagnose({.data_wait_share = 12}), st::ConfigError,
                       MessageMatches(ContainsSubstring("data_wait_share is 12; give a share from 0 to 1")));
  CHECK_THROWS_AS(st::diagnose({.step_seconds = -1}), st::ConfigError);
  CHECK_THROWS_AS(st::diagnose({.step_seconds = std::nan("")}), st::ConfigError);
  CHECK_NOTHROW(st::diagnose({.compute_share = 1.02}));  // of a peak that was measured a little low
  CHECK_THROWS_AS(st::diagnose({.compute_share = 86}), st::ConfigError);
}

TEST_CASE("Facts: taking others' numbers keeps what they do not know") {
  st::Facts facts{.steps = 3, .busy_share = 0.5, .sources = {"a"}};
  facts.remarks["steps"] = "old";
  st::Facts more{.busy_share = 0.7, .sources = {"b"}};
  more.remarks["busy_share"] = "new";
  facts.take(more);
  CHECK(facts.steps == 3.0);
  CHECK(facts.busy_share == 0.7);
  CHECK(facts.remarks.size() == 2);
  CHECK(facts.sources == std::vector<std::string>{"a", "b"});
}

TEST_CASE("Diagnosis: JSON reads back what was written") {
  st::Facts facts{.step_seconds = 0.1 + 0.2, .devices = 1, .data_wait_share = 1.0 / 3, .sources = {"trace \"x\""}};
  facts.remarks["data_wait_share"] = "of thread 7";
  facts.device = "NVIDIA H100";
  const st::Diagnosis diagnosis = st::diagnose(facts);
  CHECK(st::Diagnosis::from_json(diagnosis.to_json()) == diagnosis);
  CHECK(st::Diagnosis::from_json(st::diagnose({}).to_json()) == st::diagnose({}));
  CHECK_THROWS_AS(st::Diagnosis::from_json("{}"), st::DataError);
  CHECK_THROWS_AS(st::Diagnosis::from_json("["), st::DataError);
  std::string newer = diagnosis.to_json();
  newer.replace(newer.find("\"version\": 1"), 12, "\"version\": 9");
  CHECK_THROWS_MATCHES(st::Diagnosis::from_json(newer), st::DataError, MessageMatches(ContainsSubstring("version 1")));
}

TEST_CASE("in_words: numbers with their units") {
  CHECK(st::in_words(0.125, st::FactUnit::share) == "12.5 %");
  CHECK(st::in_words(1500, st::FactUnit::bytes) == "1.50 kB");
  CHECK(st::in_words(0.0034, st::FactUnit::seconds) == "3.4 ms");
  CHECK(st::in_words(2.5e12, st::FactUnit::flops_per_second) == "2.50 TFLOP/s");
  CHECK(st::in_words(1, st::FactUnit::yes_or_no) == "yes");
}
