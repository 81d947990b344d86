// SPDX-License-Identifier: Apache-2.0
// What an audit found, raw rounds included: as a table, as audit.json (which loads back bit for bit), and as one
// self-contained audit.html.
#pragma once

#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "saturate/audit/judge.hpp"
#include "saturate/audit/machine.hpp"
#include "saturate/audit/memory_curve.hpp"
#include "saturate/observe/memory_report.hpp"
#include "saturate/schedule/schedule_curve.hpp"

namespace saturate::audit {

/// The recorded baseline.
struct Baseline {
  RoundResult warmup;
  std::vector<RoundResult> rounds;

  double samples_per_second() const;    ///< median over the rounds
  double step_seconds(double q) const;  ///< quantile over all steps (0.5: typical, 0.95: slow); mean when not recorded
  double data_wait_share() const;       ///< of the time, in [0, 1]
  int64_t peak_bytes() const;           ///< 0: unknown
  int64_t samples() const;              ///< consumed by the end
  double final_loss() const;            ///< mean loss of the last round
};

/// The baseline at one batch size.
struct BatchPoint {
  int64_t batch_size = 0;
  std::vector<RoundResult> rounds;
  std::string error;                  ///< why there are no rounds (out of memory); empty: there are
  std::string lr_advice;              ///< what the learning rate would have to become; empty: nothing to say
  double samples_per_second() const;  ///< median over the rounds; 0 without
  int64_t peak_bytes() const;
};

/// One candidate: a tactic alone, or several together.
struct TacticResult {
  std::string id, title, how_to_apply, what;
  std::string axis;
  std::vector<std::string> members;  ///< ids of the tactics that were on
  Rules rules;
  AbRounds raw;
  Verdict verdict;
};

/// What to do.
struct Recommendation {
  std::vector<std::string> tactics;  ///< ids to switch on; empty: leave everything as it is
  double ratio = 1;                  ///< measured speed-up of exactly this set
  Interval ci = {1, 1};
  std::string text;  ///< in words, with numbers
};

struct AuditReport {
  std::string workload, description, date;
  int64_t batch_size = 0;  ///< 0: not told
  Machine machine;
  double budget_seconds = 0;
  double elapsed_seconds = 0;
  int64_t steps_per_round = 0;
  int64_t settle_steps = 0;
  Baseline baseline;
  std::optional<LoaderCeiling> loader_ceiling;
  std::string loader_error;  ///< why there is no ceiling although it was asked for
  std::vector<BatchPoint> batch_curve;
  std::optional<MemoryReport> step_memory;  ///< one step of the baseline; its timeline is thinned
  std::string step_memory_error;            ///< why there is none although it was asked for
  std::vector<MemoryPoint> memory_curve;
  std::string memory_note;  ///< why there is no curve although it was asked for
  std::vector<TacticResult> tactics;
  std::optional<TacticResult> together;  ///< when at least two paid
  std::optional<LrCurve> lr_curve;       ///< of the schedule that is meant to be trained with; plotted when given
  Recommendation recommendation;

  const TacticResult* find(std::string_view id) const;
  /// nullptr without a curve.
  const BatchPoint* fastest_batch() const;

  /// The JSON text: everything, with numbers that read back exactly. @throws DataError for text that is not valid.
  std::string to_json() const;
  static AuditReport from_json(std::string_view text, const std::string& name = "audit.json");

  /// Written to a temporary file beside it, then renamed. @throws Error naming the path when that fails.
  void save(const std::string& path) const;
  /// @throws DataError naming the file when it is missing, truncated, or no audit of a version known here.
  static AuditReport load(const std::string& path);

  /// Recomputes all verdicts and the recommendation from the raw rounds.
  void rejudge();
  /// One sentence for each verdict that is not what the raw rounds give; empty: all of them are.
  std::vector<std::string> check() const;

  void print_table(std::ostream& out) const;

  /// One page without scripts and without anything to fetch.
  std::string to_html() const;
  /// @throws Error naming the path when it cannot be written.
  void write_html(const std::string& path) const;
};

/// Picks the best of: nothing, the best single tactic, all that paid together. The text ends with memory_advice().
Recommendation recommend(const std::vector<TacticResult>& tactics, const std::optional<TacticResult>& together,
                         const std::vector<MemoryPoint>& memory_curve = {});

}  // namespace saturate::audit
