// SPDX-License-Identifier: Apache-2.0
#include "saturate/trainer/callbacks/json_lines_writer.hpp"

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>

#include "output_file.hpp"
#include "saturate/error.hpp"
#include "saturate/log.hpp"

namespace saturate {
namespace {

using Json = nlohmann::ordered_json;

Json record(const char* event, const TrainerState& state) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return Json{{"event", event},         {"time", now.count()},  {"step", state.step},
              {"window", state.window}, {"epoch", state.epoch}, {"samples", state.samples}};
}

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

// The library prints what is not finite as null; a metric's name may hold any bytes.
std::string line(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; }

}  // namespace

JsonLinesWriter::JsonLinesWriter(const std::filesystem::path& path, JsonLinesWriterOptions options)
    : file_(std::make_unique<detail::OutputFile>(
          "JsonLinesWriter", path,
          options.append ? detail::OutputFile::Mode::append : detail::OutputFile::Mode::truncate)) {}

JsonLinesWriter::~JsonLinesWriter() = default;
JsonLinesWriter::JsonLinesWriter(JsonLinesWriter&&) noexcept = default;
JsonLinesWriter& JsonLinesWriter::operator=(JsonLinesWriter&&) noexcept = default;

void JsonLinesWriter::on_fit_begin(const FitBegin& event) {
  Json json = record("fit_begin", event.state);
  json["epochs"] = event.epochs;
  json["parameters"] = event.parameters;
  json["windows_per_epoch"] = or_null(event.windows_per_epoch);
  file_->write(line(json));
}

void JsonLinesWriter::on_log(const LogEvent& event) {
  Json json = record("log", event.state);
  json["loss"] = event.loss;
  json["learning_rate"] = event.learning_rate;
  json["grad_norm"] = or_null(event.grad_norm);
  json["samples_per_second"] = event.samples_per_second;
  json["data_wait_share"] = event.data_wait_share;
  json["step_seconds"] = event.step_seconds;
  json["refused"] = event.refused;
  file_->write(line(json));
}

void JsonLinesWriter::on_evaluate(const EvaluateEvent& event) {
  Json json = record("evaluate", event.state);
  json["metrics"] = Json::object();
  for (const auto& [name, value] : event.metrics) json["metrics"][name] = value;
  file_->write(line(json));
}

void JsonLinesWriter::on_fit_end(const FitEnd& event) {
  Json json = record("fit_end", event.state);
  json["seconds"] = event.seconds;
  json["failed"] = event.failed;
  try {
    file_->write(line(json));
  } catch (const Error& error) {
    if (!event.failed) throw;
    log::error(error.what());
  }
}

}  // namespace saturate
