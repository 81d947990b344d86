// SPDX-License-Identifier: Apache-2.0
#include "saturate/diagnosis/diagnose.hpp"

#include <algorithm>
#include <optional>

namespace saturate {
namespace {

// Of a standing verdict: its thresholds lie this much further in.
constexpr double standing_margin = 0.2;
// From here on a step is called compute- or memory-bound, and nothing is wrong with it.
constexpr double near_the_roof = 0.6;

bool evidence_holds(const Evidence& evidence, double value, bool standing) {
  if (!standing) return evidence.holds(value);
  const double margin = standing_margin * evidence.threshold;
  return evidence.comparison == Comparison::above ? value > evidence.threshold - margin
                                                  : value < evidence.threshold + margin;
}

// Whether the numbers that are known let the rule speak; `missing` gets the names of those that it must have.
bool evidence_speaks(const DiagnosisRule& rule, const Facts& facts, bool standing, std::vector<std::string>& missing) {
  bool speaks = true;
  for (const Evidence& evidence : rule.evidence) {
    if (evidence.need == Need::supports) continue;
    const std::optional<double>& value = facts.*evidence.fact;
    if (value) {
      speaks = speaks && evidence_holds(evidence, *value, standing);
    } else if (evidence.need == Need::must) {
      missing.emplace_back(fact_info(evidence.fact).name);
    }
  }
  return speaks;
}

double confidence_in(const DiagnosisRule& rule, const Facts& facts) {
  double sum = 0, looked_at = 0;
  for (const Evidence& evidence : rule.evidence) {
    const FactInfo& info = fact_info(evidence.fact);
    const std::optional<double>& value = facts.*evidence.fact;
    // Whether there is a device, or ranks, is no matter of degree.
    if (info.unit == FactUnit::yes_or_no && value) continue;
    if (evidence.fact == &Facts::devices || evidence.fact == &Facts::ranks) continue;
    if (evidence.need == Need::supports && !value) continue;
    looked_at += 1;
    if (value) sum += evidence.strength(*value);
  }
  return looked_at > 0 ? 0.5 + 0.5 * sum / looked_at : 1;
}

std::string remark_on(const Facts& facts, std::string_view name) {
  const auto remark = facts.remarks.find(name);
  return remark == facts.remarks.end() ? std::string() : ": " + remark->second;
}

QuotedFact quoted(const Facts& facts, FactMember member, const std::string& condition = {}) {
  const FactInfo& info = fact_info(member);
  const double value = *(facts.*member);
  return {std::string(info.name), value,
          std::string(info.name) + " is " + in_words(value, info.unit) + condition + remark_on(facts, info.name)};
}

QuotedFact quoted(const Facts& facts, const Evidence& evidence) {
  const FactInfo& info = fact_info(evidence.fact);
  if (info.unit == FactUnit::yes_or_no) return quoted(facts, evidence.fact);
  const bool expected = evidence.holds(*(facts.*evidence.fact));
  const std::string side = evidence.comparison == Comparison::above ? "above " : "below ";
  return quoted(facts, evidence.fact,
                std::string(expected ? " (" : " (expected ") + side + in_words(evidence.threshold, info.unit) + ")");
}

DiagnosisVerdict verdict_of(const DiagnosisRule& rule, const Facts& facts) {
  DiagnosisVerdict verdict{.rule = std::string(rule.id),
                           .symptom = std::string(rule.symptom),
                           .cause = std::string(rule.cause),
                           .gain = std::clamp(rule.gain(facts), 0.0, 1.0),
                           .gain_is = std::string(rule.gain_is),
                           .confidence = confidence_in(rule, facts)};
  for (const Evidence& evidence : rule.evidence) {
    if (facts.*evidence.fact) verdict.evidence.push_back(quoted(facts, evidence));
  }
  for (const RuleTactic& tactic : rule.tactics) {
    verdict.tactics.push_back(
        {std::string(tactic.code), std::string(tactic.what), std::string(tactic.docs), std::string(tactic.audit_id)});
  }
  return verdict;
}

void quote_roof(const Facts& facts, DiagnosisVerdict& verdict) {
  for (const FactMember member : {&Facts::compute_share, &Facts::bandwidth_share, &Facts::busy_share}) {
    if (facts.*member) verdict.evidence.push_back(quoted(facts, member));
  }
}

DiagnosisVerdict at_the_roof(const Facts& facts, FactMember member, const char* bound, const char* roof) {
  const double value = *(facts.*member);
  DiagnosisVerdict verdict{.rule = "nothing-wrong",
                           .symptom = "nothing wrong here: " + std::string(bound) + " at " +
                                      in_words(value, FactUnit::share_of_peak) + " of the measured " + roof,
                           .confidence = 0.5 + 0.5 * std::clamp((value - near_the_roof) / 0.2, 0.0, 1.0)};
  quote_roof(facts, verdict);
  return verdict;
}

// No rule speaks. Whether that is because all is well depends on how near the step is to what the machine can do.
DiagnosisVerdict without_fault(const Facts& facts) {
  const double compute = facts.compute_share.value_or(0), bandwidth = facts.bandwidth_share.value_or(0);
  if (compute >= near_the_roof && compute >= bandwidth) {
    return at_the_roof(facts, &Facts::compute_share, "compute-bound", "roof");
  }
  if (bandwidth >= near_the_roof) return at_the_roof(facts, &Facts::bandwidth_share, "memory-bound", "bandwidth");
  DiagnosisVerdict verdict{.rule = "nothing-found", .confidence = 0.5};
  verdict.symptom = "nothing found that these rules know";
  if (facts.compute_share || facts.bandwidth_share) {
    verdict.symptom += "; not compute-bound either: ";
    if (facts.compute_share) {
      verdict.symptom += in_words(compute, FactUnit::share_of_peak) + " of the measured roof";
    }
    if (facts.bandwidth_share) {
      verdict.symptom += std::string(facts.compute_share ? ", " : "") + in_words(bandwidth, FactUnit::share_of_peak) +
                         " of the measured bandwidth";
    }
  } else {
    verdict.symptom += "; how near the step is to what the machine can do is not known: its peaks were not measured";
  }
  quote_roof(facts, verdict);
  return verdict;
}

std::string percent_text(double share) { return in_words(share, FactUnit::share); }

void append_fault(std::string& text, std::size_t number, const DiagnosisVerdict& verdict) {
  text += std::to_string(number) + ". " + verdict.symptom + ": at most " + percent_text(verdict.gain) +
          " of the step (" + verdict.gain_is + "), confidence " + percent_text(verdict.confidence) + "\n";
  const char* head = "   seen    ";
  for (const QuotedFact& fact : verdict.evidence) {
    text += head + fact.text + "\n";
    head = "           ";
  }
  text += "   likely  " + verdict.cause + "\n";
  head = "   try     ";
  for (const ProposedTactic& tactic : verdict.tactics) {
    text += head + (tactic.by_hand() ? "by hand" : tactic.code) + ": " + tactic.what +
            (tactic.docs.empty() ? "" : " (" + tactic.docs + ")") + "\n";
    head = "           ";
  }
}

void append_unjudged(std::string& text, const std::vector<UnjudgedRule>& unjudged) {
  if (unjudged.empty()) return;
  text += "not judged, for want of numbers:";
  const char* before = " ";
  for (const UnjudgedRule& rule : unjudged) {
    text += before + rule.rule + " (";
    for (std::size_t i = 0; i < rule.missing.size(); ++i) text += (i > 0 ? ", " : "") + rule.missing[i];
    text += ")";
    before = ", ";
  }
  text += "\n";
}

}  // namespace

Diagnosis diagnose(const Facts& facts, const DiagnosisOptions& options) {
  facts.validate();
  Diagnosis diagnosis{.facts = facts};
  std::vector<std::pair<bool, DiagnosisVerdict>> found;  // whether the numbers are wrong
  for (const DiagnosisRule& rule : diagnosis_rules()) {
    const bool standing =
        std::find(options.standing.begin(), options.standing.end(), rule.id) != options.standing.end();
    std::vector<std::string> missing;
    if (!evidence_speaks(rule, facts, standing, missing)) continue;
    if (missing.empty()) {
      found.emplace_back(rule.wrong_numbers, verdict_of(rule, facts));
    } else {
      diagnosis.unjudged.push_back({std::string(rule.id), std::move(missing)});
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first : a.second.gain > b.second.gain;
  });
  for (auto& [wrong, verdict] : found) diagnosis.verdicts.push_back(std::move(verdict));
  if (found.empty()) diagnosis.verdicts.push_back(without_fault(facts));
  return diagnosis;
}

const DiagnosisVerdict* Diagnosis::find(std::string_view rule) const {
  const auto at =
      std::find_if(verdicts.begin(), verdicts.end(), [&](const auto& verdict) { return verdict.rule == rule; });
  return at == verdicts.end() ? nullptr : &*at;
}

std::vector<std::string> Diagnosis::faults() const {
  std::vector<std::string> ids;
  for (const DiagnosisVerdict& verdict : verdicts) {
    if (verdict.is_fault()) ids.push_back(verdict.rule);
  }
  return ids;
}

std::string Diagnosis::text() const {
  std::string text;
  std::size_t number = 0;
  for (const DiagnosisVerdict& verdict : verdicts) {
    if (verdict.is_fault()) {
      append_fault(text, ++number, verdict);
      continue;
    }
    text += verdict.symptom + "\n";
    for (const QuotedFact& fact : verdict.evidence) text += "   seen    " + fact.text + "\n";
  }
  append_unjudged(text, unjudged);
  return text;
}

}  // namespace saturate
