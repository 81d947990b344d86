// SPDX-License-Identifier: Apache-2.0
// audit.json. One list of fields per struct serves both directions, so that what is written is what is read.
#include <cmath>
#include <concepts>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <type_traits>

#include "saturate/audit/report.hpp"
#include "saturate/error.hpp"
#include "write_file.hpp"

namespace saturate::audit {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "saturate.audit";
constexpr int64_t kVersion = 1;

template <class T, class Visitor>
concept Struct = requires(T& value, Visitor& visit) {
  fields(visit, value);
};

void fields(auto& visit, RoundResult& v) {
  visit("seconds", v.seconds);
  visit("steps", v.steps);
  visit("samples", v.samples);
  visit("loss_sum", v.loss_sum);
  visit("loss_count", v.loss_count);
  visit("data_wait_seconds", v.data_wait_seconds);
  visit("step_seconds", v.step_seconds);
  visit("peak_bytes", v.peak_bytes);
}
void fields(auto& visit, LoaderCeiling& v) {
  visit("samples_per_second", v.samples_per_second);
  visit("samples", v.samples);
  visit("cause", v.cause);
}
void fields(auto& visit, ArmRound& v) {
  visit("settle", v.settle);
  visit("timed", v.timed);
}
void fields(auto& visit, AbRound& v) {
  visit("candidate_first", v.candidate_first);
  visit("baseline", v.baseline);
  visit("candidate", v.candidate);
}
void fields(auto& visit, AbRounds& v) {
  visit("baseline_warmup", v.baseline_warmup);
  visit("candidate_warmup", v.candidate_warmup);
  visit("rounds", v.rounds);
  visit("error", v.error);
  visit("skipped", v.skipped);
  visit("note", v.note);
}
void fields(auto& visit, Rules& v) {
  visit("min_gain", v.min_gain);
  visit("loss_tolerance", v.loss_tolerance);
  visit("confidence", v.confidence);
  visit("min_rounds", v.min_rounds);
  visit("min_hopeless_rounds", v.min_hopeless_rounds);
  visit("hopeless_ratio", v.hopeless_ratio);
  visit("resamples", v.resamples);
  visit("seed", v.seed);
}
void fields(auto& visit, Interval& v) {
  visit("low", v.low);
  visit("high", v.high);
}
void fields(auto& visit, Verdict& v) {
  visit("outcome", v.outcome);
  visit("ratio", v.ratio);
  visit("ci", v.ci);
  visit("rounds", v.rounds);
  visit("loss_samples", v.loss_samples);
  visit("baseline_loss", v.baseline_loss);
  visit("candidate_loss", v.candidate_loss);
  visit("reason", v.reason);
}
void fields(auto& visit, Machine& v) {
  visit("cpu", v.cpu);
  visit("logical_cores", v.logical_cores);
  visit("isa", v.isa);
  visit("memory_bytes", v.memory_bytes);
  visit("kernel", v.kernel);
  visit("libtorch", v.libtorch);
  visit("threads", v.threads);
  visit("accelerator", v.accelerator);
}
void fields(auto& visit, Baseline& v) {
  visit("warmup", v.warmup);
  visit("rounds", v.rounds);
}
void fields(auto& visit, BatchPoint& v) {
  visit("batch_size", v.batch_size);
  visit("rounds", v.rounds);
  visit("error", v.error);
  visit("lr_advice", v.lr_advice);
}
void fields(auto& visit, MemoryPoint& v) {
  visit("label", v.label);
  visit("how_to_apply", v.how_to_apply);
  visit("rounds", v.rounds);
  visit("error", v.error);
}
void fields(auto& visit, TacticResult& v) {
  visit("id", v.id);
  visit("title", v.title);
  visit("how_to_apply", v.how_to_apply);
  visit("what", v.what);
  visit("axis", v.axis);
  visit("members", v.members);
  visit("verdict", v.verdict);
  visit("rules", v.rules);
  visit("raw", v.raw);
}
void fields(auto& visit, LrPoint& v) {
  visit("step", v.step);
  visit("lr", v.lr);
}
void fields(auto& visit, LrCurve& v) {
  visit("title", v.title);
  visit("points", v.points);
}
void fields(auto& visit, Recommendation& v) {
  visit("tactics", v.tactics);
  visit("ratio", v.ratio);
  visit("ci", v.ci);
  visit("text", v.text);
}
void fields(auto& visit, AuditReport& v) {
  visit("workload", v.workload);
  visit("description", v.description);
  visit("date", v.date);
  visit("batch_size", v.batch_size);
  visit("machine", v.machine);
  visit("budget_seconds", v.budget_seconds);
  visit("elapsed_seconds", v.elapsed_seconds);
  visit("steps_per_round", v.steps_per_round);
  visit("settle_steps", v.settle_steps);
  visit("recommendation", v.recommendation);
  visit("baseline", v.baseline);
  visit("loader_ceiling", v.loader_ceiling);
  visit("loader_error", v.loader_error);
  visit("batch_curve", v.batch_curve);
  visit.where_given("step_memory", v.step_memory);
  visit.where_filled("step_memory_error", v.step_memory_error);
  visit.where_filled("memory_curve", v.memory_curve);
  visit.where_filled("memory_note", v.memory_note);
  visit("tactics", v.tactics);
  visit("together", v.together);
  visit.where_given("lr_curve", v.lr_curve);
}

// ---- writing

struct Writer {
  Json& json;

  template <class T>
  void operator()(const char* name, T& value) {
    json[name] = to(value);
  }
  template <class T>
  void where_given(const char* name, std::optional<T>& value) {
    if (value) (*this)(name, *value);
  }
  template <class T>
  void where_filled(const char* name, T& value) {
    if (!value.empty()) (*this)(name, value);
  }

  // JSON has no word for these; null would not say which one it was.
  static Json to(double value) {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
    return value;
  }
  static Json to(Outcome value) { return to_string(value); }
  static Json to(MemoryReport& value) { return Json::parse(value.to_json()); }  // it has a format of its own
  template <class T>
  static Json to(std::optional<T>& value) {
    return value ? to(*value) : Json(nullptr);
  }
  template <class T>
  static Json to(std::vector<T>& values) {
    Json array = Json::array();
    for (T& value : values) array.push_back(to(value));
    return array;
  }
  template <class T>
  static Json to(T& value) {
    if constexpr (Struct<T, Writer>) {
      Json object = Json::object();
      Writer visit{object};
      fields(visit, value);
      return object;
    } else {
      return Json(value);
    }
  }
};

// ---- reading

struct Reader {
  const Json& json;
  std::string path;

  template <class T>
  void operator()(const char* name, T& value) {
    const std::string at = path.empty() ? name : path + "." + name;
    if (!json.is_object() || !json.contains(name)) throw DataError("'" + at + "' is missing");
    from(json.at(name), value, at);
  }
  // Fields that files from before they were thought of lack.
  template <class T>
  void where_given(const char* name, std::optional<T>& value) {
    value.reset();
    if (json.contains(name)) (*this)(name, value.emplace());
  }
  template <class T>
  void where_filled(const char* name, T& value) {
    value = {};
    if (json.contains(name)) (*this)(name, value);
  }

  [[noreturn]] static void wrong(const std::string& at, const char* wanted) {
    throw DataError("'" + at + "' is not " + wanted);
  }

  static void from(const Json& j, double& value, const std::string& at) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const double infinity = std::numeric_limits<double>::infinity();
    if (j.is_number()) {
      value = j.get<double>();
    } else if (j.is_string() && (j == "nan" || j == "inf" || j == "-inf")) {
      value = j == "nan" ? nan : j == "inf" ? infinity : -infinity;
    } else {
      wrong(at, "a number");
    }
  }
  template <std::integral T>
  static void from(const Json& j, T& value, const std::string& at) {
    if (std::is_unsigned_v<T> ? !j.is_number_unsigned() : !j.is_number_integer()) wrong(at, "a whole number");
    if (std::is_signed_v<T> && j.is_number_unsigned() && j.get<uint64_t>() > INT64_MAX) wrong(at, "a 64-bit integer");
    value = j.get<T>();
  }
  static void from(const Json& j, bool& value, const std::string& at) {
    if (!j.is_boolean()) wrong(at, "true or false");
    value = j.get<bool>();
  }
  static void from(const Json& j, std::string& value, const std::string& at) {
    if (!j.is_string()) wrong(at, "a text");
    value = j.get<std::string>();
  }
  static void from(const Json& j, Outcome& value, const std::string& at) {
    for (const Outcome outcome : {Outcome::kept, Outcome::rejected, Outcome::not_measured}) {
      if (j == to_string(outcome)) {
        value = outcome;
        return;
      }
    }
    wrong(at, "kept, rejected or not measured");
  }
  static void from(const Json& j, MemoryReport& value, const std::string& at) {
    try {
      value = MemoryReport::from_json(j.dump());
    } catch (const DataError& e) {
      throw DataError("'" + at + "': " + e.what());
    }
  }
  template <class T>
  static void from(const Json& j, std::optional<T>& value, const std::string& at) {
    value.reset();
    if (!j.is_null()) from(j, value.emplace(), at);
  }
  template <class T>
  static void from(const Json& j, std::vector<T>& values, const std::string& at) {
    if (!j.is_array()) wrong(at, "a list");
    values.assign(j.size(), T{});
    for (std::size_t i = 0; i < values.size(); ++i) from(j[i], values[i], at + "[" + std::to_string(i) + "]");
  }
  template <class T>
  requires std::is_class_v<T>
  static void from(const Json& j, T& value, const std::string& at) {
    if (!j.is_object()) wrong(at, "an object");
    Reader visit{j, at};
    fields(visit, value);
  }
};

AuditReport parse(std::string_view text) {
  const Json json = Json::parse(text);
  if (!json.is_object() || !json.contains("format") || json["format"] != kFormat) {
    throw DataError("it is JSON, but no audit (\"format\" is not \"saturate.audit\")");
  }
  Reader head{json, {}};
  int64_t version = 0;
  head("version", version);
  if (version != kVersion) {
    throw DataError("it has version " + std::to_string(version) + ", this library reads version " +
                    std::to_string(kVersion) + "; make it anew");
  }
  AuditReport report;
  fields(head, report);
  return report;
}

}  // namespace

std::string AuditReport::to_json() const {
  AuditReport copy = *this;  // one list of fields serves reading too, and so takes what it may change
  Json json = {{"format", kFormat}, {"version", kVersion}};
  Writer visit{json};
  fields(visit, copy);
  // A message with bytes that are no UTF-8 must not cost the whole audit.
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

AuditReport AuditReport::from_json(std::string_view text, const std::string& name) {
  try {
    return parse(text);
  } catch (const nlohmann::json::exception& e) {
    throw DataError(name + ": not a whole JSON file: " + e.what());
  } catch (const DataError& e) {
    throw DataError(name + ": " + e.what());
  }
}

void AuditReport::save(const std::string& path) const { write_file(path, to_json()); }

AuditReport AuditReport::load(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream content;
  // A folder opens, and fails only here.
  if (!file || !(content << file.rdbuf()))
    throw DataError(path + ": cannot be read, or is empty; is it an audit.json?");
  return from_json(content.str(), path);
}

}  // namespace saturate::audit
