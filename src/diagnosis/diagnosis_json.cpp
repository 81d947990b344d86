// SPDX-License-Identifier: Apache-2.0
#include "saturate/diagnosis/diagnose.hpp"
#include "saturate/error.hpp"

#include <nlohmann/json.hpp>

namespace saturate {
namespace {

using DiagnosisJson = nlohmann::ordered_json;
constexpr const char* diagnosis_format = "saturate.diagnosis";
constexpr int diagnosis_version = 1;

DiagnosisJson facts_json(const Facts& facts) {
  DiagnosisJson numbers = DiagnosisJson::object();
  for (const FactInfo& info : all_facts()) {
    if (facts.*info.member) numbers[std::string(info.name)] = *(facts.*info.member);
  }
  return {{"numbers", std::move(numbers)},
          {"remarks", facts.remarks},
          {"device", facts.device},
          {"precision", facts.precision},
          {"sources", facts.sources}};
}

Facts facts_from(const DiagnosisJson& json) {
  Facts facts;
  for (const FactInfo& info : all_facts()) {
    const auto at = json.at("numbers").find(std::string(info.name));
    if (at != json.at("numbers").end()) facts.*info.member = at->get<double>();
  }
  for (const auto& [name, remark] : json.at("remarks").items()) facts.remarks[name] = remark.get<std::string>();
  json.at("device").get_to(facts.device);
  json.at("precision").get_to(facts.precision);
  json.at("sources").get_to(facts.sources);
  return facts;
}

DiagnosisJson verdict_json(const DiagnosisVerdict& verdict) {
  DiagnosisJson evidence = DiagnosisJson::array(), tactics = DiagnosisJson::array();
  for (const QuotedFact& fact : verdict.evidence) {
    evidence.push_back({{"fact", fact.name}, {"value", fact.value}, {"text", fact.text}});
  }
  for (const ProposedTactic& tactic : verdict.tactics) {
    tactics.push_back(
        {{"code", tactic.code}, {"what", tactic.what}, {"docs", tactic.docs}, {"audit_id", tactic.audit_id}});
  }
  return {{"rule", verdict.rule},          {"symptom", verdict.symptom},
          {"cause", verdict.cause},        {"evidence", std::move(evidence)},
          {"tactics", std::move(tactics)}, {"gain", verdict.gain},
          {"gain_is", verdict.gain_is},    {"confidence", verdict.confidence}};
}

DiagnosisVerdict verdict_from(const DiagnosisJson& json) {
  DiagnosisVerdict verdict;
  json.at("rule").get_to(verdict.rule);
  json.at("symptom").get_to(verdict.symptom);
  json.at("cause").get_to(verdict.cause);
  for (const DiagnosisJson& fact : json.at("evidence")) {
    verdict.evidence.push_back(
        {fact.at("fact").get<std::string>(), fact.at("value").get<double>(), fact.at("text").get<std::string>()});
  }
  for (const DiagnosisJson& tactic : json.at("tactics")) {
    verdict.tactics.push_back({tactic.at("code").get<std::string>(), tactic.at("what").get<std::string>(),
                               tactic.at("docs").get<std::string>(), tactic.at("audit_id").get<std::string>()});
  }
  json.at("gain").get_to(verdict.gain);
  json.at("gain_is").get_to(verdict.gain_is);
  json.at("confidence").get_to(verdict.confidence);
  return verdict;
}

}  // namespace

std::string Diagnosis::to_json() const {
  DiagnosisJson json = {{"format", diagnosis_format}, {"version", diagnosis_version}, {"facts", facts_json(facts)}};
  json["verdicts"] = DiagnosisJson::array();
  for (const DiagnosisVerdict& verdict : verdicts) json["verdicts"].push_back(verdict_json(verdict));
  json["unjudged"] = DiagnosisJson::array();
  for (const UnjudgedRule& rule : unjudged) {
    json["unjudged"].push_back({{"rule", rule.rule}, {"missing", rule.missing}});
  }
  // Names from a trace need not be UTF-8.
  return json.dump(1, ' ', false, DiagnosisJson::error_handler_t::replace) + "\n";
}

Diagnosis Diagnosis::from_json(std::string_view text) {
  try {
    const DiagnosisJson json = DiagnosisJson::parse(text);
    if (json.value("format", "") != diagnosis_format || json.value("version", 0) != diagnosis_version) {
      throw DataError("Diagnosis::from_json: no diagnosis of version " + std::to_string(diagnosis_version) +
                      ", which is the one that is known here");
    }
    Diagnosis diagnosis{.facts = facts_from(json.at("facts"))};
    for (const DiagnosisJson& verdict : json.at("verdicts")) diagnosis.verdicts.push_back(verdict_from(verdict));
    for (const DiagnosisJson& rule : json.at("unjudged")) {
      diagnosis.unjudged.push_back(
          {rule.at("rule").get<std::string>(), rule.at("missing").get<std::vector<std::string>>()});
    }
    return diagnosis;
  } catch (const nlohmann::json::exception& error) {
    throw DataError(std::string("Diagnosis::from_json: ") + error.what());
  }
}

}  // namespace saturate
