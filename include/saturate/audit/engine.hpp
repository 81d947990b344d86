// SPDX-License-Identifier: Apache-2.0
// The audit: a recorded baseline, then each tactic alone against it in interleaved rounds, then together those that
// paid.
//
//   saturate::audit::Audit audit({"my model", "what it is", make}, {{"bf16", "BF16 autocast", "st::Bf16{}", "..."}});
//   saturate::audit::AuditReport report = audit.run();
//   report.print_table(std::cout);
//   report.save("audit.json");
//   report.write_html("audit.html");
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "saturate/audit/report.hpp"
#include "saturate/audit/runner.hpp"

namespace saturate::audit {

struct AuditOptions {
  int64_t rounds = 8;              ///< A/B pairs for each tactic
  int64_t steps_per_round = 0;     ///< 0: as many as fill seconds_per_round
  double seconds_per_round = 1.0;  ///< timed part of one arm's round
  int64_t warmup_steps = 5;        ///< before anything is timed, for every arm
  int64_t settle_steps = 1;        ///< untimed, before each arm's timed steps in each round
  double budget_seconds = 200;     ///< for everything; what does not fit is reported as not measured
  double min_gain = 0.02;          ///< a tactic that gains less is not worth keeping
  double same_math_tolerance = 0.02;
  double loss_tolerance = 0.05;  ///< for tactics that are not Tactic::same_math
  /// A round of a slow candidate takes at most this many times the baseline's; it gets fewer steps instead.
  double slow_factor = 2.0;
  Rules rules = {};  ///< min_gain and loss_tolerance in it are set from the fields above
  std::string date;  ///< written into the report as it is
  std::function<void(std::string_view line)> progress = {};  ///< default: saturate::log::info
  std::function<double()> clock = {};                        ///< seconds, for the budget; default: a steady clock
};

class Audit {
 public:
  /// @throws ConfigError for a workload without a name or make, tactics without an id or with the same one, and options
  /// that cannot work.
  Audit(Workload workload, std::vector<Tactic> tactics, AuditOptions options = {});

  /// Measures everything. What a tactic throws rejects that tactic; what the baseline throws comes out of here.
  AuditReport run();

 private:
  Workload workload_;
  std::vector<Tactic> tactics_;
  AuditOptions options_;
};

}  // namespace saturate::audit
