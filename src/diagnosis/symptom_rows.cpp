// SPDX-License-Identifier: Apache-2.0
// docs/symptoms.md, from the rules.
#include "saturate/diagnosis/rules.hpp"

namespace saturate {
namespace {

// "docs/data.md#images" as a link from a page in docs/.
std::string linked(const std::string& text, std::string_view docs) {
  constexpr std::string_view folder = "docs/";
  if (docs.empty()) return text;
  if (docs.starts_with(folder)) docs.remove_prefix(folder.size());
  return "[" + text + "](" + std::string(docs) + ")";
}

std::string evidence_cell(const DiagnosisRule& rule) {
  std::string cell;
  for (const Evidence& evidence : rule.evidence) {
    if (!cell.empty()) cell += "; ";
    const std::string words = evidence.in_words();
    const std::size_t name = fact_info(evidence.fact).name.size();
    cell += "`" + words.substr(0, name) + "`" + words.substr(name);
    if (evidence.need == Need::unless_refuted) cell += ", if known";
    if (evidence.need == Need::supports) cell += ", the surer";
  }
  return cell;
}

std::string tactics_cell(const DiagnosisRule& rule) {
  std::string cell;
  int number = 0;
  for (const RuleTactic& tactic : rule.tactics) {
    if (number > 0) cell += "<br>";
    const std::string code = tactic.code.empty() ? "by hand" : "`" + std::string(tactic.code) + "`";
    cell += std::to_string(++number) + ". " + linked(code, tactic.docs) + ": " + std::string(tactic.what);
  }
  return cell;
}

}  // namespace

std::string symptom_rows() {
  std::string rows = "| symptom | evidence | likely cause | try, in this order |\n| --- | --- | --- | --- |\n";
  for (const DiagnosisRule& rule : diagnosis_rules()) {
    rows += "| " + std::string(rule.symptom) + " (`" + std::string(rule.id) + "`) | " + evidence_cell(rule) + " | " +
            std::string(rule.cause) + " | " + tactics_cell(rule) + " |\n";
  }
  return rows;
}

}  // namespace saturate
