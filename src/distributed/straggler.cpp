// SPDX-License-Identifier: Apache-2.0
#include "saturate/distributed/straggler.hpp"

#include "saturate/error.hpp"
#include "saturate/log.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <deque>
#include <limits>
#include <utility>

namespace saturate {
namespace {

std::string milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f ms", seconds * 1000);
  return text;
}

std::string times(double ratio) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f times", ratio);
  return text;
}

/// An interval on its way round.
struct IntervalOnItsWay {
  int64_t window;
  at::Tensor all;  // [ranks, 2]
  c10::intrusive_ptr<c10d::Work> work;
};

}  // namespace

int StragglerTimes::slowest() const {
  return static_cast<int>(std::max_element(own_seconds.begin(), own_seconds.end()) - own_seconds.begin());
}

double StragglerTimes::median_of_others() const {
  std::vector<double> others = own_seconds;
  if (others.size() > 1) others.erase(others.begin() + slowest());
  std::sort(others.begin(), others.end());
  const std::size_t n = others.size();
  if (n == 0) return 0;
  return (others[(n - 1) / 2] + others[n / 2]) / 2;
}

double StragglerTimes::ratio() const {
  const double median = median_of_others();
  return median > 0 ? own_seconds[static_cast<std::size_t>(slowest())] / median : 1.0;
}

std::string StragglerTimes::in_words() const {
  if (own_seconds.empty()) return "no rank has been timed";
  const auto rank = static_cast<std::size_t>(slowest());
  std::string words =
      c10::str("rank ", rank, " is the slowest: ", milliseconds(own_seconds[rank]), " of its own a window, ",
               times(ratio()), " the others' median of ", milliseconds(median_of_others()));
  if (rank < loader_seconds.size() && !std::isnan(loader_seconds[rank])) {
    words += " (" + milliseconds(loader_seconds[rank]) + " of it wait for its loader)";
  }
  return words;
}

void StragglerReportOptions::validate() const {
  if (every < 1) throw ConfigError(c10::str("StragglerReportOptions: every is ", every, "; give 1 or more windows"));
  if (!(warn_ratio > 1)) {
    throw ConfigError(c10::str("StragglerReportOptions: warn_ratio is ", warn_ratio,
                               "; the slowest rank is never faster than the others: give more than 1"));
  }
}

struct StragglerReport::State {
  distributed::ProcessGroup group;  // between CPUs
  StragglerReportOptions options;

  std::chrono::steady_clock::time_point begin;
  double waited_at_begin = 0;
  double own = 0;  // seconds of the interval so far
  double loader = std::numeric_limits<double>::quiet_NaN();
  int64_t windows = 0;  // of the interval so far

  std::deque<IntervalOnItsWay> on_the_way;
  std::optional<StragglerTimes> last;
  std::vector<double> sum;
  int64_t intervals = 0;
};

StragglerReport::StragglerReport(const distributed::ProcessGroup& group, StragglerReportOptions options)
    : state_(std::make_shared<State>()) {
  options.validate();
  state_->group = group.beside("stragglers");
  state_->options = std::move(options);
}

void StragglerReport::start_clock() {
  state_->begin = std::chrono::steady_clock::now();
  state_->waited_at_begin = distributed::Waiting::seconds();
}

void StragglerReport::on_fit_begin(const FitBegin&) {
  State& state = *state_;
  state.on_the_way.clear();
  state.last.reset();
  state.sum.clear();
  state.intervals = state.windows = 0;
  state.own = 0;
  state.loader = std::numeric_limits<double>::quiet_NaN();
  start_clock();
}

void StragglerReport::on_epoch_begin(const EpochBegin&) { start_clock(); }

void StragglerReport::on_step(const StepEvent& event) {
  State& state = *state_;
  if (state.group.world_size() == 1) return;
  const double all = std::chrono::duration<double>(std::chrono::steady_clock::now() - state.begin).count();
  state.own += std::max(all - (distributed::Waiting::seconds() - state.waited_at_begin), 0.0);
  if (++state.windows == state.options.every) send(event.state.window);
  receive(/*wait=*/false);
  start_clock();
}

void StragglerReport::on_log(const LogEvent& event) { state_->loader = event.data_wait_share * event.step_seconds; }

// The evaluation is over.
void StragglerReport::on_evaluate(const EvaluateEvent&) { start_clock(); }

void StragglerReport::send(int64_t window) {
  State& state = *state_;
  const int64_t ranks = state.group.world_size();
  IntervalOnItsWay interval{window, at::empty({ranks, 2}, at::kDouble), {}};
  at::Tensor mine = at::zeros({2}, at::kDouble);
  mine[0] = state.own / static_cast<double>(state.windows);
  mine[1] = state.loader;
  std::vector<std::vector<at::Tensor>> outputs(1);
  for (int64_t rank = 0; rank < ranks; ++rank) outputs[0].push_back(interval.all[rank]);
  std::vector<at::Tensor> inputs{mine};
  c10d::AllgatherOptions options;
  options.timeout = state.group.timeout();
  interval.work = state.group.c10d()->allgather(outputs, inputs, options);
  state.on_the_way.push_back(std::move(interval));
  state.own = 0;
  state.windows = 0;
}

void StragglerReport::receive(bool wait) {
  State& state = *state_;
  while (!state.on_the_way.empty() && (wait || state.on_the_way.front().work->isCompleted())) {
    const IntervalOnItsWay interval = std::move(state.on_the_way.front());
    state.on_the_way.pop_front();
    state.group.run("gathering the ranks' times", [&] { interval.work->wait(); });
    StragglerTimes times{.window = interval.window};
    for (int64_t rank = 0; rank < state.group.world_size(); ++rank) {
      times.own_seconds.push_back(interval.all[rank][0].item<double>());
      times.loader_seconds.push_back(interval.all[rank][1].item<double>());
    }
    state.sum.resize(times.own_seconds.size());
    for (std::size_t rank = 0; rank < state.sum.size(); ++rank) state.sum[rank] += times.own_seconds[rank];
    ++state.intervals;
    if (state.group.rank() == 0 && times.ratio() >= state.options.warn_ratio) {
      log::warn("StragglerReport, window " + std::to_string(times.window) + ": " + times.in_words());
    }
    if (state.options.notify) state.options.notify(times);
    state.last = std::move(times);
  }
}

void StragglerReport::on_fit_end(const FitEnd& event) {
  if (event.failed || state_->group.world_size() == 1) return;
  receive(/*wait=*/true);
  if (state_->group.rank() == 0 && state_->intervals > 0) {
    log::info("StragglerReport, all of fit: " + overall()->in_words());
  }
}

std::optional<StragglerTimes> StragglerReport::last() const { return state_->last; }

std::optional<StragglerTimes> StragglerReport::overall() const {
  if (state_->intervals == 0) return std::nullopt;
  StragglerTimes mean{.window = state_->last->window};
  for (const double sum : state_->sum) mean.own_seconds.push_back(sum / static_cast<double>(state_->intervals));
  mean.loader_seconds = state_->last->loader_seconds;
  return mean;
}

}  // namespace saturate
