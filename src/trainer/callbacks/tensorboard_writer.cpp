// SPDX-License-Identifier: Apache-2.0
#include "saturate/trainer/callbacks/tensorboard_writer.hpp"

#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <string>

#include "event_file.hpp"
#include "output_file.hpp"
#include "saturate/error.hpp"

namespace saturate {
namespace {

double now() {
  const std::chrono::duration<double> time = std::chrono::system_clock::now().time_since_epoch();
  return time.count();
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  return name.data();
}

// TensorBoard sorts a folder's files by name and reads them in that order, so the time comes first.
std::filesystem::path file_name() {
  static std::atomic<int> made{0};
  std::string seconds = std::to_string(static_cast<int64_t>(now()));
  if (seconds.size() < 10) seconds.insert(0, 10 - seconds.size(), '0');
  return "events.out.tfevents." + seconds + "." + host_name() + "." + std::to_string(::getpid()) + "." +
         std::to_string(made++);
}

}  // namespace

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& folder)
    : file_(std::make_unique<detail::OutputFile>("TensorBoardWriter", folder / file_name(),
                                                 detail::OutputFile::Mode::truncate)) {
  file_->write(detail::tf_record(detail::version_event(now())));
}

TensorBoardWriter::~TensorBoardWriter() = default;
TensorBoardWriter::TensorBoardWriter(TensorBoardWriter&&) noexcept = default;
TensorBoardWriter& TensorBoardWriter::operator=(TensorBoardWriter&&) noexcept = default;

const std::filesystem::path& TensorBoardWriter::path() const { return file_->path(); }

void TensorBoardWriter::scalar(std::string_view tag, int64_t step, double value) {
  if (tag.empty()) throw ConfigError("TensorBoardWriter: a scalar needs a tag, such as \"train/loss\".");
  file_->write(detail::tf_record(detail::scalar_event(now(), step, tag, static_cast<float>(value))));
}

void TensorBoardWriter::on_log(const LogEvent& event) {
  const int64_t step = event.state.step;
  scalar("train/loss", step, event.loss);
  scalar("train/learning_rate", step, event.learning_rate);
  if (event.grad_norm) scalar("train/grad_norm", step, *event.grad_norm);
  scalar("train/samples_per_second", step, event.samples_per_second);
  scalar("train/data_wait_share", step, event.data_wait_share);
  scalar("train/step_seconds", step, event.step_seconds);
  scalar("train/refused", step, static_cast<double>(event.refused));
}

void TensorBoardWriter::on_evaluate(const EvaluateEvent& event) {
  for (const auto& [metric, value] : event.metrics) scalar("evaluate/" + metric, event.state.step, value);
}

}  // namespace saturate
