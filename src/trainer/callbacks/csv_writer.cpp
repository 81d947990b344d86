// SPDX-License-Identifier: Apache-2.0
#include "saturate/trainer/callbacks/csv_writer.hpp"

#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <fstream>
#include <string>
#include <string_view>

#include "output_file.hpp"
#include "saturate/error.hpp"

namespace saturate {
namespace {

constexpr std::string_view header =
    "event,time,step,window,epoch,samples,loss,learning_rate,grad_norm,samples_per_second,data_wait_share,step_seconds,"
    "refused,metric,value";
constexpr std::string_view no_log_cells = ",,,,,,,";
constexpr std::string_view no_metric_cells = ",,";

std::string cell(double value) {
  if (std::isnan(value)) return "nan";
  std::array<char, 32> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;  // "inf", "-inf" as well
  return std::string(digits.data(), end);
}

std::string cell(const std::optional<double>& value) { return value ? cell(*value) : ""; }
std::string cell(int64_t value) { return std::to_string(value); }

std::string cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char letter : text) {
    if (letter == '"') quoted += '"';
    quoted += letter;
  }
  return quoted + '"';
}

std::string time_and_state(const TrainerState& state) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  std::string text = std::to_string(now.count());
  for (const int64_t value : {state.step, state.window, state.epoch, state.samples}) text += "," + cell(value);
  return text;
}

void require_same_columns(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  if (line == header) return;
  throw ConfigError("CsvWriter: '" + path.string() + "' has other columns (\"" + line.substr(0, 60) +
                    "\") and cannot be appended to; choose another path, or leave append off to replace it.");
}

// A line that a crash cut off must not be joined by the next record.
bool ends_in_newline(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(-1, std::ios::end);
  return file.get() == '\n';
}

}  // namespace

CsvWriter::CsvWriter(const std::filesystem::path& path, CsvWriterOptions options)
    : file_(std::make_unique<detail::OutputFile>(
          "CsvWriter", path, options.append ? detail::OutputFile::Mode::append : detail::OutputFile::Mode::truncate)) {
  if (file_->size_before() == 0) {
    file_->write(std::string(header) + "\n");
    return;
  }
  require_same_columns(path);
  if (!ends_in_newline(path)) file_->write("\n");
}

CsvWriter::~CsvWriter() = default;
CsvWriter::CsvWriter(CsvWriter&&) noexcept = default;
CsvWriter& CsvWriter::operator=(CsvWriter&&) noexcept = default;

void CsvWriter::on_log(const LogEvent& event) {
  std::string line = "log," + time_and_state(event.state);
  for (const auto& text :
       {cell(event.loss), cell(event.learning_rate), cell(event.grad_norm), cell(event.samples_per_second),
        cell(event.data_wait_share), cell(event.step_seconds), cell(event.refused)}) {
    line += "," + text;
  }
  file_->write(line.append(no_metric_cells) + "\n");
}

void CsvWriter::on_evaluate(const EvaluateEvent& event) {
  const std::string start = "evaluate," + time_and_state(event.state) + std::string(no_log_cells);
  std::string lines;
  for (const auto& [metric, value] : event.metrics) lines += start + "," + cell(metric) + "," + cell(value) + "\n";
  file_->write(lines);
}

}  // namespace saturate
