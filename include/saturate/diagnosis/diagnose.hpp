// SPDX-License-Identifier: Apache-2.0
// What is wrong with a step, by how much of it could be gained, and what to do about it:
//
//   const st::Diagnosis diagnosis = st::diagnose({.devices = 1, .pageable_copy_share = 0.18});
//   std::cout << diagnosis.text();
//
//   1. copies to the device from pageable memory: at most 18 % of the step, confidence 94 %
//      seen    pageable_copy_share is 18 % (above 3 %)
//      ...
#pragma once

#include "saturate/diagnosis/facts.hpp"
#include "saturate/diagnosis/rules.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace saturate {

struct DiagnosisOptions {
  /// Rules that spoke when the step was last looked at: such a one falls silent only when its numbers are a fifth
  /// inside of their thresholds, so that a verdict at a threshold does not come and go.
  std::vector<std::string> standing = {};
};

/// A number as a verdict quotes it.
struct QuotedFact {
  std::string name;
  double value = 0;
  std::string text;  ///< "pageable_copy_share is 18 % (above 3 %)"
  bool operator==(const QuotedFact&) const = default;
};

struct ProposedTactic {
  std::string code, what, docs, audit_id;  ///< as in RuleTactic
  bool by_hand() const { return code.empty(); }
  bool operator==(const ProposedTactic&) const = default;
};

struct DiagnosisVerdict {
  std::string rule;  ///< DiagnosisRule::id; "nothing-wrong" or "nothing-found" when no rule speaks
  std::string symptom, cause;
  std::vector<QuotedFact> evidence;
  std::vector<ProposedTactic> tactics;
  double gain = 0;  ///< share of the step, at most
  std::string gain_is;
  /// In [0.5, 1]: 0.5 at the thresholds, 1 where every number is clear. A number that is missing counts as one at its
  /// threshold. No probability.
  double confidence = 0;
  bool operator==(const DiagnosisVerdict&) const = default;

  bool is_fault() const { return rule != "nothing-wrong" && rule != "nothing-found"; }
};

/// A rule that could not be judged.
struct UnjudgedRule {
  std::string rule;
  std::vector<std::string> missing;  ///< names of facts
  bool operator==(const UnjudgedRule&) const = default;
};

struct Diagnosis {
  /// Faults, those first whose numbers are wrong, then by what could be gained; never empty: without a fault there is
  /// one that says so.
  std::vector<DiagnosisVerdict> verdicts;
  std::vector<UnjudgedRule> unjudged;
  Facts facts;
  bool operator==(const Diagnosis&) const = default;

  /// nullptr: that rule did not speak.
  const DiagnosisVerdict* find(std::string_view rule) const;
  /// Ids of the faults, for DiagnosisOptions::standing.
  std::vector<std::string> faults() const;
  std::string text() const;

  /// Numbers read back exactly. {"format": "saturate.diagnosis", "version": 1, ...}
  std::string to_json() const;
  /// @throws DataError not such a text.
  static Diagnosis from_json(std::string_view text);
};

/// @throws ConfigError Facts::validate.
Diagnosis diagnose(const Facts& facts, const DiagnosisOptions& options = {});

}  // namespace saturate
