// SPDX-License-Identifier: Apache-2.0
// From raw rounds to a verdict, as a pure function: who keeps the rounds can judge them again, by other rules if need
// be.
#pragma once

#include <string>
#include <vector>

#include "saturate/audit/runner.hpp"
#include "saturate/audit/statistics.hpp"

namespace saturate::audit {

/// One arm's part in a round: a few untimed steps that let queues and caches settle, then the timed ones.
struct ArmRound {
  RoundResult settle;
  RoundResult timed;
};

/// Both arms, one after the other; which one went first alternates (A B, B A, A B, ...), so that a drift of the machine
/// favours neither.
struct AbRound {
  bool candidate_first = false;
  ArmRound baseline;
  ArmRound candidate;
};

/// Everything recorded while one candidate ran against the baseline.
struct AbRounds {
  RoundResult baseline_warmup;
  RoundResult candidate_warmup;
  std::vector<AbRound> rounds;
  std::string error;    ///< the message of the exception that ended it; empty: none
  std::string skipped;  ///< why it was not measured at all; empty: it was
  std::string note;     ///< why it ended early; empty: it did not
};

struct Rules {
  double min_gain = 0.02;        ///< the median ratio must be at least 1 + min_gain
  double loss_tolerance = 0.02;  ///< largest relative difference of the mean losses
  double confidence = 0.95;
  int64_t min_rounds = 5;           ///< to keep a tactic
  int64_t min_hopeless_rounds = 3;  ///< to reject one whose every round is below hopeless_ratio
  double hopeless_ratio = 0.9;
  int64_t resamples = 4000;
  uint64_t seed = 0x5a7u;
};

enum class Outcome { kept, rejected, not_measured };
const char* to_string(Outcome outcome);

struct Verdict {
  Outcome outcome = Outcome::not_measured;
  double ratio = 0;          ///< median of the rounds' speed ratios, candidate / baseline; 0 without rounds
  Interval ci;               ///< its confidence interval
  int64_t rounds = 0;        ///< complete pairs
  int64_t loss_samples = 0;  ///< the losses below are means over this many samples, the same for both arms
  double baseline_loss = 0;
  double candidate_loss = 0;
  std::string reason;  ///< "kept: 1.23x (95 % CI 1.19 to 1.27)", "rejected: slower, 0.11x", ...
  bool kept() const { return outcome == Outcome::kept; }
  /// The reason without the outcome's word in front: "slower, 0.11x".
  std::string cause() const {
    return reason.substr(reason.find(": ") == std::string::npos ? 0 : reason.find(": ") + 2);
  }
};

/// The verdict. A tactic is kept when there are enough rounds, the interval of the speed ratio lies above 1, the median
/// gains at least min_gain, and the mean losses over the same number of samples agree. A loss that is not finite, or
/// was not reported, never agrees.
/// @throws ConfigError for rules that cannot work.
Verdict judge(const AbRounds& raw, const Rules& rules);

/// Whether more rounds cannot save the candidate: every one of at least min_hopeless_rounds is below hopeless_ratio, or
/// a loss is not finite.
bool is_hopeless(const AbRounds& raw, const Rules& rules);

/// candidate / baseline samples per second of each round. @throws ConfigError for a round without time or samples.
std::vector<double> speed_ratios(const AbRounds& raw);

/// The mean loss of one arm along its samples: warm-up, then each round's untimed and timed part as one point.
struct LossPoint {
  int64_t samples = 0;  ///< consumed up to the end of this part
  double loss_sum = 0;  ///< up to there
  double loss_count = 0;
  double mean = 0;  ///< of this part alone
};
enum class Arm { baseline, candidate };
std::vector<LossPoint> loss_curve(const AbRounds& raw, Arm arm);

/// The mean loss over the first `samples` samples of a curve, interpolated linearly inside a part. NaN when the curve
/// is empty, is shorter, or has no count.
double mean_loss_over(const std::vector<LossPoint>& curve, int64_t samples);

}  // namespace saturate::audit
