// SPDX-License-Identifier: Apache-2.0
// Shows how a run goes: a bar on a terminal, a line a log elsewhere.
//
//   Trainer trainer(net, optimizer, loss, Progress{});
//
//   epoch 2/3  41% [=========>.............]  loss 0.3123  lr 9.8e-04  4.1k samples/s  wait 3%  ETA 0:42
#pragma once

#include "saturate/trainer/events.hpp"

#include <chrono>
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>

namespace saturate {

struct ProgressOptions {
  std::ostream* stream = nullptr;  ///< must outlive the object; nullptr: std::cout
  std::optional<bool>
      terminal;              ///< empty: whether the stream is std::cout, cerr or clog on a terminal (TERM not "dumb")
  std::optional<int> width;  ///< columns; empty: asked from the terminal at each redraw, 80 where there is none
  double redraw_seconds = 0.05;  ///< a bar is redrawn no more often than this; plain lines are never left out
};

/// On a terminal: one line redrawn in place at each log (`log_every` of fit), no wider than the terminal; what does not
/// fit is left out from the right. Evaluations and finished epochs stay above it. The cursor is never hidden, and the
/// line ends with a newline however fit ends. Elsewhere: a line a log, an evaluation and an epoch, without control
/// characters.
class Progress {
 public:
  /// @throws ConfigError for a width below 20 or a negative (or NaN) redraw_seconds.
  explicit Progress(ProgressOptions options = {});

  void on_fit_begin(const FitBegin& event);
  void on_epoch_begin(const EpochBegin& event);
  void on_log(const LogEvent& event);
  void on_evaluate(const EvaluateEvent& event);
  void on_epoch_end(const EpochEnd& event);
  void on_fit_end(const FitEnd& event);

 private:
  std::string epoch_label() const;
  int columns() const;
  std::string bar_line() const;
  std::string plain_line(const LogEvent& event) const;
  void draw();
  void print_above(const std::string& line);
  void finish_bar();

  // What a bar shows, kept because a redraw may come when there is no log event at hand.
  struct Shown {
    std::optional<double> progress;
    std::string samples;  // seen, for a stream without a known end
    std::string values;
  };

  ProgressOptions options_;
  bool terminal_;
  int64_t first_epoch_ = 0;
  int64_t epoch_ = 1;   // of this fit, from 1
  int64_t epochs_ = 0;  // of this fit; 0: unknown
  std::optional<Shown> shown_;
  bool drawn_ = false;  // the cursor stands in a bar
  std::chrono::steady_clock::time_point last_draw_;
};

}  // namespace saturate
