// SPDX-License-Identifier: Apache-2.0
#include "saturate/trainer/callbacks/progress.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string_view>

#include "saturate/error.hpp"

namespace saturate {
namespace {

constexpr const char* clear_line = "\r\x1b[K";
constexpr int widest_bar = 30;
constexpr int narrowest_bar = 8;

int descriptor_of(const std::ostream* stream) {
  if (stream == &std::cout) return STDOUT_FILENO;
  if (stream == &std::cerr || stream == &std::clog) return STDERR_FILENO;
  return -1;
}

bool is_terminal(const std::ostream* stream) {
  const int descriptor = descriptor_of(stream);
  if (descriptor < 0 || ::isatty(descriptor) == 0) return false;
  const char* kind = std::getenv("TERM");
  return kind != nullptr && std::string_view(kind) != "dumb";
}

template <class... Args>
std::string format(const char* pattern, Args... args) {
  std::array<char, 64> text;
  std::snprintf(text.data(), text.size(), pattern, args...);
  return text.data();
}

// 532, 4.1k, 1.93M
std::string short_count(double value) {
  if (value >= 999.5e3) return format("%.2fM", value / 1e6);
  if (value >= 9999.5) return format("%.0fk", value / 1e3);
  if (value >= 999.5) return format("%.1fk", value / 1e3);
  return format("%.0f", value);
}

// 0:42, 12:05, 3:00:00
std::string clock(double seconds) {
  const auto total = static_cast<long long>(std::llround(std::clamp(seconds, 0.0, 1e9)));
  if (total >= 3600) return format("%lld:%02lld:%02lld", total / 3600, total / 60 % 60, total % 60);
  return format("%lld:%02lld", total / 60, total % 60);
}

std::string values_of(const LogEvent& event) {
  std::string text = format("loss %.4g", event.loss) + format("  lr %.3g", event.learning_rate);
  text += "  " + short_count(event.samples_per_second) + " samples/s";
  text += format("  wait %.0f%%", 100 * event.data_wait_share);
  if (event.eta_seconds) text += "  ETA " + clock(*event.eta_seconds);
  if (event.grad_norm) text += format("  grad %.3g", *event.grad_norm);
  if (event.refused > 0) text += "  refused " + std::to_string(event.refused);
  return text;
}

std::string percent(double progress) { return format("%3.0f%%", std::floor(100 * std::clamp(progress, 0.0, 1.0))); }

std::string bar(double progress, int width) {
  const int filled = static_cast<int>(std::clamp(progress, 0.0, 1.0) * width);
  std::string cells(static_cast<size_t>(filled), '=');
  if (filled < width) cells += '>';
  cells.resize(static_cast<size_t>(width), '.');
  return "[" + cells + "]";
}

// Cuts whole values off the end, then letters.
std::string fit_into(std::string text, size_t width) {
  while (text.size() > width) {
    const auto gap = text.rfind("  ");
    if (gap == std::string::npos || gap == 0) return text.substr(0, width);
    text.erase(gap);
  }
  return text;
}

}  // namespace

Progress::Progress(ProgressOptions options) : options_(options) {
  if (options_.width && *options_.width < 20) {
    throw ConfigError("Progress: a width of " + std::to_string(*options_.width) +
                      " columns has no room for a line; give at least 20.");
  }
  if (!(options_.redraw_seconds >= 0)) {
    throw ConfigError("Progress: redraw_seconds " + std::to_string(options_.redraw_seconds) +
                      " cannot be; give 0 or more.");
  }
  if (options_.stream == nullptr) options_.stream = &std::cout;
  terminal_ = options_.terminal.value_or(is_terminal(options_.stream));
}

int Progress::columns() const {
  if (options_.width) return *options_.width;
  winsize size{};
  const int descriptor = descriptor_of(options_.stream);
  if (descriptor >= 0 && ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

std::string Progress::epoch_label() const {
  return "epoch " + std::to_string(epoch_) + (epochs_ > 0 ? "/" + std::to_string(epochs_) : "");
}

// One column stays free: a line that fills the last one wraps on some terminals.
std::string Progress::bar_line() const {
  const auto width = static_cast<size_t>(std::max(columns() - 1, 1));
  if (!shown_->progress) return fit_into(epoch_label() + "  " + shown_->samples + "  " + shown_->values, width);
  const std::string start = epoch_label() + " " + percent(*shown_->progress);
  const int room = static_cast<int>(width) - static_cast<int>(start.size() + shown_->values.size()) - 5;
  if (room < narrowest_bar) return fit_into(start + "  " + shown_->values, width);
  return start + " " + bar(*shown_->progress, std::min(room, widest_bar)) + "  " + shown_->values;
}

std::string Progress::plain_line(const LogEvent& event) const {
  std::string text = epoch_label();
  if (event.epoch_progress) text += " " + percent(*event.epoch_progress);
  return text + "  step " + std::to_string(event.state.step) + "  " + values_of(event);
}

// One write a redraw, so that nothing flickers.
void Progress::draw() {
  *options_.stream << clear_line + bar_line() << std::flush;
  drawn_ = true;
  last_draw_ = std::chrono::steady_clock::now();
}

void Progress::print_above(const std::string& line) {
  const bool redraw = drawn_;
  *options_.stream << (redraw ? clear_line : "") + line + "\n" << std::flush;
  if (redraw) draw();
}

void Progress::finish_bar() {
  if (drawn_) {
    draw();  // the last values, which a redraw may have skipped
    *options_.stream << "\n" << std::flush;
  }
  drawn_ = false;
  shown_.reset();
}

void Progress::on_fit_begin(const FitBegin& event) {
  first_epoch_ = event.state.epoch;
  epochs_ = event.epochs;
  epoch_ = 1;
}

void Progress::on_epoch_begin(const EpochBegin& event) { epoch_ = event.state.epoch - first_epoch_ + 1; }

void Progress::on_log(const LogEvent& event) {
  epochs_ = event.epochs;
  if (!terminal_) {
    *options_.stream << plain_line(event) + "\n" << std::flush;
    return;
  }
  shown_ =
      Shown{event.epoch_progress, short_count(static_cast<double>(event.state.samples)) + " samples", values_of(event)};
  const std::chrono::duration<double> since = std::chrono::steady_clock::now() - last_draw_;
  if (!drawn_ || since.count() >= options_.redraw_seconds) draw();
}

void Progress::on_evaluate(const EvaluateEvent& event) {
  std::string line = epoch_label() + "  step " + std::to_string(event.state.step) + "  evaluation:";
  for (const auto& [metric, value] : event.metrics) line += "  " + metric + format(" %.4g", value);
  print_above(line);
}

void Progress::on_epoch_end(const EpochEnd& event) {
  if (terminal_) {
    finish_bar();
  } else {
    *options_.stream << epoch_label() + "  done in " + clock(event.seconds) + "\n" << std::flush;
  }
}

void Progress::on_fit_end(const FitEnd& event) {
  finish_bar();
  *options_.stream << (event.failed ? "failed after " : "finished in ") + clock(event.seconds) + ", " +
                          std::to_string(event.state.step) + " steps\n"
                   << std::flush;
}

}  // namespace saturate
