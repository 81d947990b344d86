// SPDX-License-Identifier: Apache-2.0
// Writes a run's log as comma-separated values, one record a line:
//
//   Trainer trainer(net, optimizer, loss, CsvWriter("runs/first.csv"));
#pragma once

#include "saturate/trainer/events.hpp"

#include <filesystem>
#include <memory>

namespace saturate {

namespace detail {
class OutputFile;
}

struct CsvWriterOptions {
  /// Goes on after the records of an earlier run instead of replacing them.
  bool append = false;
};

/// One table for both events; cells that an event has nothing for stay empty. Its columns:
///   event (log or evaluate), time (seconds since 1970), step, window, epoch, samples,
///   loss, learning_rate, grad_norm, samples_per_second, data_wait_share, step_seconds, refused   (log)
///   metric, value                                                    (evaluate: one line a metric)
/// Numbers have as many digits as give the same double again; what is not finite reads nan, inf, -inf. Text is quoted
/// as RFC 4180 says. Each record is written at once. Movable, not copyable.
class CsvWriter {
 public:
  /// Makes missing folders of `path`; replaces a file that is there unless told to append.
  /// @throws ConfigError naming the path when it cannot be written, or, appending, has other columns.
  explicit CsvWriter(const std::filesystem::path& path, CsvWriterOptions options = {});
  ~CsvWriter();
  CsvWriter(CsvWriter&&) noexcept;
  CsvWriter& operator=(CsvWriter&&) noexcept;

  /// @throws Error naming the path when the record cannot be written (the disk is full).
  void on_log(const LogEvent& event);
  void on_evaluate(const EvaluateEvent& event);

 private:
  std::unique_ptr<detail::OutputFile> file_;
};

}  // namespace saturate
