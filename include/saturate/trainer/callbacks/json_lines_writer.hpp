// SPDX-License-Identifier: Apache-2.0
// Writes a run's log as JSON lines, one object a record:
//
//   Trainer trainer(net, optimizer, loss, JsonLinesWriter("runs/first.jsonl"));
#pragma once

#include "saturate/trainer/events.hpp"

#include <filesystem>
#include <memory>

namespace saturate {

namespace detail {
class OutputFile;
}

struct JsonLinesWriterOptions {
  /// Goes on after the records of an earlier run instead of replacing them.
  bool append = false;
};

/// Every record has "event", "time" (seconds since 1970), "step", "window", "epoch" and "samples", and besides:
///   fit_begin  epochs, parameters, windows_per_epoch (null for a stream)
///   log        loss, learning_rate, grad_norm (null without clipping), samples_per_second, data_wait_share,
///              step_seconds, refused
///   evaluate   metrics: an object of numbers by name
///   fit_end    seconds, failed
/// A number that is not finite is null, since JSON has no word for it. Each record is written at once. Movable, not
/// copyable.
class JsonLinesWriter {
 public:
  /// Makes missing folders of `path`; replaces a file that is there unless told to append.
  /// @throws ConfigError naming the path when it cannot be written.
  explicit JsonLinesWriter(const std::filesystem::path& path, JsonLinesWriterOptions options = {});
  ~JsonLinesWriter();
  JsonLinesWriter(JsonLinesWriter&&) noexcept;
  JsonLinesWriter& operator=(JsonLinesWriter&&) noexcept;

  /// @throws Error naming the path when the record cannot be written (the disk is full).
  void on_fit_begin(const FitBegin& event);
  void on_log(const LogEvent& event);
  void on_evaluate(const EvaluateEvent& event);
  /// Logs a failure to write instead of throwing when an exception is already leaving fit.
  void on_fit_end(const FitEnd& event);

 private:
  std::unique_ptr<detail::OutputFile> file_;
};

}  // namespace saturate
