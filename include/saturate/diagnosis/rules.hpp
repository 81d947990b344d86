// SPDX-License-Identifier: Apache-2.0
// From evidence to symptom, to likely cause, to tactics: the rules of the diagnosis, as data. A rule is one row of the
// table in src/diagnosis/rules.cpp, and docs/symptoms.md is written from it.
#pragma once

#include "saturate/diagnosis/facts.hpp"

#include <span>
#include <string>
#include <string_view>

namespace saturate {

enum class Comparison { above, below };

enum class Need {
  must,            ///< unknown or not so: the rule is silent
  unless_refuted,  ///< known and not so: the rule is silent; unknown: less confidence
  supports,        ///< so: more confidence; known and not so: less; unknown: not looked at
};

/// A number against its threshold. Beyond the threshold it speaks, from `clear` on without doubt.
struct Evidence {
  FactMember fact;
  Comparison comparison;
  double threshold;
  double clear;
  Need need = Need::must;

  bool holds(double value) const { return comparison == Comparison::above ? value > threshold : value < threshold; }
  /// 0 at the threshold, 1 from `clear` on.
  double strength(double value) const;
  /// "small_kernel_share above 50 %".
  std::string in_words() const;
};

/// One thing to do.
struct RuleTactic {
  std::string_view code;  ///< "saturate::ChannelsLast{}"; empty: nothing in saturate does it, it is work by hand
  std::string_view what;
  std::string_view docs;           ///< "docs/policies.md#memory-format"; empty where saturate has nothing for it
  std::string_view audit_id = {};  ///< how the audit's tactics that try it begin ("recompute-"); empty: none does
};

struct DiagnosisRule {
  std::string_view id;  ///< "pageable-copies"
  std::string_view symptom;
  std::span<const Evidence> evidence;
  std::string_view cause;
  std::span<const RuleTactic> tactics;  ///< what to try first, first
  /// Share of the step that could be gained, at most. Called when the evidence holds.
  double (*gain)(const Facts&);
  std::string_view gain_is;  ///< how that is reckoned
  /// The numbers are wrong, not only slow: comes before all that is about speed.
  bool wrong_numbers = false;
};

/// Thresholds and order are fixed: they were set before the faults of tests/unit/diagnosis were last run.
std::span<const DiagnosisRule> diagnosis_rules();

/// The rules as rows of a Markdown table, with its head: symptom, evidence, likely cause, tactics in their order.
std::string symptom_rows();

}  // namespace saturate
