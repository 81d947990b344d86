// SPDX-License-Identifier: Apache-2.0
#include "saturate/audit/judge.hpp"

#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <limits>

#include "saturate/error.hpp"

namespace saturate::audit {
namespace {

using Catch::Approx;

RoundResult part(double speed, double loss, int64_t samples = 1000) {
  RoundResult r;
  r.samples = samples;
  r.steps = samples / 10;
  r.seconds = static_cast<double>(samples) / speed;
  r.loss_count = static_cast<double>(samples);
  r.loss_sum = loss * r.loss_count;
  return r;
}

AbRounds rounds(const std::vector<double>& ratios, double candidate_loss = 0.5, double baseline_loss = 0.5) {
  AbRounds raw;
  for (std::size_t i = 0; i < ratios.size(); ++i) {
    const double machine = 1000.0 * (1 + static_cast<double>(i));  // drifts: only the pairing sees through it
    AbRound round;
    round.baseline.timed = part(machine, baseline_loss);
    round.candidate.timed = part(machine * ratios[i], candidate_loss);
    raw.rounds.push_back(round);
  }
  return raw;
}

const std::vector<double> kFaster = {1.22, 1.25, 1.23, 1.20, 1.26, 1.23, 1.21};

TEST_CASE("a faster tactic with the same loss is kept, with its numbers") {
  const Verdict v = judge(rounds(kFaster), {});
  CHECK(v.outcome == Outcome::kept);
  CHECK(v.ratio == Approx(1.23));
  CHECK(v.rounds == 7);
  CHECK(v.reason == "kept: 1.23x (95 % CI 1.21 to 1.25)");
  CHECK(v.loss_samples == 7000);
}

TEST_CASE("a slower one is rejected, the hopeless one after three rounds") {
  CHECK(judge(rounds({0.95, 0.96, 0.94, 0.95, 0.97, 0.95}), {}).reason.starts_with("rejected: slower, 0.95x"));
  const AbRounds hopeless = rounds({0.11, 0.11, 0.12});
  CHECK(is_hopeless(hopeless, {}));
  CHECK(judge(hopeless, {}).reason.starts_with("rejected: slower, 0.11x"));
  CHECK_FALSE(is_hopeless(rounds({0.11, 0.11}), {}));
  CHECK_FALSE(is_hopeless(rounds({0.11, 0.11, 0.9}), {}));  // the limit itself is not below it
}

TEST_CASE("too few rounds keep nothing") {
  CHECK(judge(rounds({1.2, 1.2, 1.2, 1.2}), {}).reason == "rejected: too few rounds, 4 of at least 5");
  CHECK(judge(rounds({1.2, 1.2, 1.2, 1.2, 1.2}), {}).outcome == Outcome::kept);
  const Verdict none = judge(AbRounds{}, {});
  CHECK(none.outcome == Outcome::rejected);
  CHECK(none.reason == "rejected: too few rounds, 0 of at least 5");
}

TEST_CASE("an interval that reaches 1 shows no gain") {
  const Verdict v = judge(rounds({0.97, 1.04, 0.97, 1.01, 1.04, 0.99}), {});
  CHECK(v.outcome == Outcome::rejected);
  CHECK(v.reason == "rejected: no gain shown, CI 0.97 to 1.04 spans 1");
  // Exactly 1 as the lower end is no gain shown either.
  CHECK(judge(rounds({1, 1, 1, 1, 1}), {}).reason.starts_with("rejected: no gain shown"));
}

TEST_CASE("a gain below min_gain is too small, at min_gain it is kept") {
  Rules rules;
  rules.min_gain = 0.25;
  CHECK(judge(rounds({1.2, 1.2, 1.2, 1.2, 1.2}), rules)
            .reason.starts_with("rejected: gain too small, 1.20x where 1.25x"));
  CHECK(judge(rounds({1.25, 1.25, 1.25, 1.25, 1.25}), rules).outcome == Outcome::kept);
}

TEST_CASE("the loss has to agree over the same samples") {
  Rules rules;
  rules.loss_tolerance = 0.25;
  CHECK(judge(rounds(kFaster, 0.625, 0.5), rules).kept());  // 25 % above, exactly at the limit
  CHECK(judge(rounds(kFaster, 0.375, 0.5), rules).kept());
  CHECK_FALSE(judge(rounds(kFaster, 0.6251, 0.5), rules).kept());
  CHECK_FALSE(judge(rounds(kFaster, 0.3749, 0.5), rules).kept());
  CHECK(
      judge(rounds(kFaster, 2.31, 0.52), rules).reason.starts_with("rejected: loss parity failed: 2.31 against 0.52"));
}

TEST_CASE("a loss that is not finite, or was not reported, never passes") {
  Rules rules;
  rules.loss_tolerance = 1e9;
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    AbRounds raw = rounds(kFaster);
    raw.rounds[3].candidate.timed.loss_sum = bad;
    CHECK(judge(raw, rules).outcome == Outcome::rejected);
    CHECK(judge(raw, rules).reason.find("loss parity failed") != std::string::npos);
    CHECK(is_hopeless(raw, rules));
    AbRounds baseline = rounds(kFaster);
    baseline.rounds[3].baseline.timed.loss_sum = bad;
    CHECK(judge(baseline, rules).outcome == Outcome::rejected);
  }
  AbRounds silent = rounds(kFaster);
  for (AbRound& round : silent.rounds) {
    round.baseline.timed.loss_sum = round.baseline.timed.loss_count = 0;
    round.candidate.timed.loss_sum = round.candidate.timed.loss_count = 0;
  }
  CHECK(judge(silent, rules).reason == "rejected: loss parity failed: no finite loss was reported");
}

TEST_CASE("a candidate that ran fewer samples is compared over those alone") {
  AbRounds raw = rounds({0.2, 0.2, 0.2}, 2.0, 2.0);
  raw.rounds[1].baseline.timed = part(1000, 1.0);
  raw.rounds[2].baseline.timed = part(1000, 0.1);  // the baseline has learnt by then; the candidate never got there
  for (AbRound& round : raw.rounds) round.candidate.timed = part(200, 2.0, 500);
  raw.rounds[2].candidate.timed = part(200, 1.0, 500);
  const Verdict v = judge(raw, {});
  CHECK(v.loss_samples == 1500);
  CHECK(v.baseline_loss == Approx((1000 * 2.0 + 500 * 1.0) / 1500));
  CHECK(v.candidate_loss == Approx((1000 * 2.0 + 500 * 1.0) / 1500));
}

TEST_CASE("untimed steps and the warm-up count towards the loss, not towards the speed") {
  AbRounds raw = rounds(kFaster);
  raw.candidate_warmup = raw.baseline_warmup = part(1, 0.5, 100);
  for (AbRound& round : raw.rounds) round.candidate.settle = round.baseline.settle = part(1, 0.5, 10);
  CHECK(judge(raw, {}).ratio == Approx(1.23));
  CHECK(loss_curve(raw, Arm::candidate).back().samples == 100 + 7 * 1010);
  raw.candidate_warmup.loss_sum = std::nan("");
  CHECK_FALSE(judge(raw, {}).kept());
}

TEST_CASE("an exception or a skip is the whole reason") {
  AbRounds raw = rounds(kFaster);
  raw.error = "no such kernel";
  CHECK(judge(raw, {}).outcome == Outcome::rejected);
  CHECK(judge(raw, {}).reason == "rejected: it threw: no such kernel");
  AbRounds skipped;
  skipped.skipped = "the time budget of 9 s was spent";
  CHECK(judge(skipped, {}).outcome == Outcome::not_measured);
  CHECK(judge(skipped, {}).reason == "not measured: the time budget of 9 s was spent");
}

TEST_CASE("rules and rounds that cannot work are refused") {
  const auto refuses = [](auto change) {
    Rules rules;
    change(rules);
    CHECK_THROWS_AS(judge(AbRounds{}, rules), ConfigError);
  };
  refuses([](Rules& r) { r.min_gain = -0.1; });
  refuses([](Rules& r) { r.loss_tolerance = std::nan(""); });
  refuses([](Rules& r) { r.hopeless_ratio = 1; });
  refuses([](Rules& r) { r.min_rounds = 0; });
  refuses([](Rules& r) { r.confidence = 1; });
  refuses([](Rules& r) { r.resamples = 0; });
  AbRounds raw = rounds(kFaster);
  raw.rounds[0].baseline.timed.seconds = 0;
  CHECK_THROWS_AS(judge(raw, {}), ConfigError);
}

}  // namespace
}  // namespace saturate::audit
