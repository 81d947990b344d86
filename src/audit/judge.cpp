// SPDX-License-Identifier: Apache-2.0
#include "saturate/audit/judge.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "saturate/error.hpp"
#include "text.hpp"

namespace saturate::audit {
namespace {

using text::format;

void check(const Rules& rules) {
  if (!(rules.min_gain >= 0)) {
    throw ConfigError("audit: min_gain is " + text::number(rules.min_gain) + "; a gain to ask for is 0 or more");
  }
  if (!(rules.loss_tolerance >= 0)) {
    throw ConfigError("audit: loss_tolerance is " + text::number(rules.loss_tolerance) + "; it must be 0 or more");
  }
  if (!(rules.hopeless_ratio > 0 && rules.hopeless_ratio < 1)) {
    throw ConfigError("audit: hopeless_ratio is " + text::number(rules.hopeless_ratio) + "; it lies between 0 and 1");
  }
  if (!(rules.confidence > 0 && rules.confidence < 1)) {
    throw ConfigError("audit: confidence is " + text::number(rules.confidence) + "; it lies between 0 and 1");
  }
  if (rules.resamples < 1) {
    throw ConfigError("audit: " + std::to_string(rules.resamples) + " bootstrap resamples; take at least 1");
  }
  if (rules.min_rounds < 1 || rules.min_hopeless_rounds < 1) {
    throw ConfigError("audit: min_rounds and min_hopeless_rounds must be at least 1");
  }
}

std::string percent_of(double confidence) {
  const double value = confidence * 100;
  return format(value == std::floor(value) ? "%.0f" : "%g", value);
}

std::string ci_words(const Verdict& v, const Rules& rules) {
  return percent_of(rules.confidence) + " % CI " + text::ratio(v.ci.low) + " to " + text::ratio(v.ci.high);
}

bool all_hopeless(const std::vector<double>& ratios, const Rules& rules) {
  return static_cast<int64_t>(ratios.size()) >= rules.min_hopeless_rounds &&
         std::all_of(ratios.begin(), ratios.end(), [&](double r) { return r < rules.hopeless_ratio; });
}

// A part that counted nothing (no settling steps) has no loss to be finite.
bool bad_loss(const RoundResult& part) { return !std::isfinite(part.loss_sum) || !std::isfinite(part.loss_count); }

bool any_bad_loss(const AbRounds& raw) {
  return bad_loss(raw.candidate_warmup) || std::any_of(raw.rounds.begin(), raw.rounds.end(), [](const AbRound& r) {
           return bad_loss(r.candidate.settle) || bad_loss(r.candidate.timed);
         });
}

void measure_loss(Verdict& v, const AbRounds& raw) {
  const auto baseline = loss_curve(raw, Arm::baseline);
  const auto candidate = loss_curve(raw, Arm::candidate);
  v.loss_samples =
      std::min(baseline.empty() ? 0 : baseline.back().samples, candidate.empty() ? 0 : candidate.back().samples);
  v.baseline_loss = mean_loss_over(baseline, v.loss_samples);
  v.candidate_loss = mean_loss_over(candidate, v.loss_samples);
}

bool losses_agree(const Verdict& v, const Rules& rules) {
  const double difference = std::abs(v.candidate_loss - v.baseline_loss);
  // Written so that a NaN on either side is not agreement.
  return std::isfinite(v.candidate_loss) && difference <= rules.loss_tolerance * std::abs(v.baseline_loss);
}

std::string loss_failure(const Verdict& v, const Rules& rules) {
  if (std::isnan(v.candidate_loss) && std::isnan(v.baseline_loss)) {
    return "rejected: loss parity failed: no finite loss was reported";
  }
  return "rejected: loss parity failed: " + text::number(v.candidate_loss) + " against " +
         text::number(v.baseline_loss) + " over the same " + text::thousands(static_cast<double>(v.loss_samples)) +
         " samples (at most " + text::percent(rules.loss_tolerance) + " apart passes)";
}

std::string slower(const Verdict& v, const Rules& rules) {
  return "rejected: slower, " + text::ratio(v.ratio) + "x (" + ci_words(v, rules) + ")";
}

// The reason, in the order in which the gates close.
std::string decide(const Verdict& v, const AbRounds& raw, const std::vector<double>& ratios, const Rules& rules) {
  if (any_bad_loss(raw)) return loss_failure(v, rules);
  if (all_hopeless(ratios, rules)) return slower(v, rules);
  if (v.rounds < rules.min_rounds) {
    return "rejected: too few rounds, " + std::to_string(v.rounds) + " of at least " +
           std::to_string(rules.min_rounds) + (raw.note.empty() ? "" : " (" + raw.note + ")");
  }
  if (v.ci.high < 1) return slower(v, rules);
  if (!losses_agree(v, rules)) return loss_failure(v, rules);
  if (v.ci.low <= 1) {
    return "rejected: no gain shown, CI " + text::ratio(v.ci.low) + " to " + text::ratio(v.ci.high) + " spans 1";
  }
  if (v.ratio < 1 + rules.min_gain) {
    return "rejected: gain too small, " + text::ratio(v.ratio) + "x where " + text::ratio(1 + rules.min_gain) +
           "x was asked for (" + ci_words(v, rules) + ")";
  }
  return "kept: " + text::ratio(v.ratio) + "x (" + ci_words(v, rules) + ")";
}

}  // namespace

const char* to_string(Outcome outcome) {
  switch (outcome) {
    case Outcome::kept: return "kept";
    case Outcome::rejected: return "rejected";
    case Outcome::not_measured: return "not measured";
  }
  return "not measured";
}

std::vector<double> speed_ratios(const AbRounds& raw) {
  std::vector<double> baseline, candidate;
  for (const AbRound& round : raw.rounds) {
    for (const RoundResult* part : {&round.baseline.timed, &round.candidate.timed}) {
      if (!(part->seconds > 0 && std::isfinite(part->seconds)) || part->samples <= 0) {
        throw ConfigError("audit: round " + std::to_string(baseline.size() + 1) + " reports " +
                          std::to_string(part->samples) + " samples in " + text::number(part->seconds) +
                          " s; a runner reports the samples and the time of its steps");
      }
    }
    baseline.push_back(round.baseline.timed.samples_per_second());
    candidate.push_back(round.candidate.timed.samples_per_second());
  }
  return paired_ratios(baseline, candidate);
}

std::vector<LossPoint> loss_curve(const AbRounds& raw, Arm arm) {
  std::vector<LossPoint> curve;
  LossPoint at;
  const auto add = [&](std::initializer_list<const RoundResult*> parts) {
    double sum = 0, count = 0;
    int64_t samples = 0;
    for (const RoundResult* part : parts) {
      samples += part->samples;
      sum += part->loss_sum;
      count += part->loss_count;
    }
    if (samples <= 0) return;
    at = {at.samples + samples, at.loss_sum + sum, at.loss_count + count, sum / count};
    curve.push_back(at);
  };
  add({arm == Arm::baseline ? &raw.baseline_warmup : &raw.candidate_warmup});
  for (const AbRound& round : raw.rounds) {
    const ArmRound& part = arm == Arm::baseline ? round.baseline : round.candidate;
    add({&part.settle, &part.timed});
  }
  return curve;
}

double mean_loss_over(const std::vector<LossPoint>& curve, int64_t samples) {
  LossPoint before;
  for (const LossPoint& point : curve) {
    if (point.samples >= samples && samples > 0) {
      const double part =
          static_cast<double>(samples - before.samples) / static_cast<double>(point.samples - before.samples);
      const double sum = before.loss_sum + part * (point.loss_sum - before.loss_sum);
      const double count = before.loss_count + part * (point.loss_count - before.loss_count);
      return count > 0 ? sum / count : std::numeric_limits<double>::quiet_NaN();
    }
    before = point;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

bool is_hopeless(const AbRounds& raw, const Rules& rules) {
  return any_bad_loss(raw) || all_hopeless(speed_ratios(raw), rules);
}

Verdict judge(const AbRounds& raw, const Rules& rules) {
  check(rules);
  Verdict v;
  v.rounds = static_cast<int64_t>(raw.rounds.size());
  if (!raw.skipped.empty()) {
    v.reason = "not measured: " + raw.skipped;
    return v;
  }
  v.outcome = Outcome::rejected;
  std::vector<double> ratios;
  if (!raw.rounds.empty()) {
    ratios = speed_ratios(raw);
    v.ratio = median(ratios);
    v.ci = bootstrap_median(ratios, rules.confidence, rules.resamples, rules.seed);
  }
  measure_loss(v, raw);
  v.reason = raw.error.empty() ? decide(v, raw, ratios, rules) : "rejected: it threw: " + raw.error;
  if (v.reason.starts_with("kept")) v.outcome = Outcome::kept;
  return v;
}

}  // namespace saturate::audit
