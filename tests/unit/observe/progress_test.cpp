// SPDX-License-Identifier: Apache-2.0
#include "saturate/trainer/callbacks/progress.hpp"

#include <catch2/catch_test_macros.hpp>
#include <sstream>
#include <vector>

#include "saturate/error.hpp"

using namespace saturate;

namespace {

void one_epoch(Progress& progress, bool failed = false) {
  TrainerState state;
  progress.on_fit_begin({state, 3, 100, 1234});
  progress.on_epoch_begin({state});
  state.step = 41;
  state.samples = 5248;
  LogEvent log{state};
  log.loss = 0.31234;
  log.learning_rate = 9.8e-4;
  log.samples_per_second = 4123;
  log.data_wait_share = 0.034;
  log.eta_seconds = 42.2;
  log.epoch_progress = 0.419;
  log.epochs = 3;
  progress.on_log(log);
  if (!failed) {
    state.step = 100;
    log.loss = 0.25;
    log.epoch_progress = 1.0;
    log.grad_norm = 1.5;
    log.refused = 2;
    progress.on_log(log);
    const Metrics metrics{{"accuracy", 0.8765}, {"loss", 0.3}};
    progress.on_evaluate({state, metrics});
    state.epoch = 1;
    progress.on_epoch_end({state, 61.0});
  }
  progress.on_fit_end({state, 3700.0, failed});
}

// What is on the screen in the end: each line after its last clearing.
std::vector<std::string> screen(const std::string& written) {
  std::vector<std::string> lines;
  std::istringstream stream(written);
  for (std::string line; std::getline(stream, line);) {
    const auto cleared = line.rfind("\r\x1b[K");
    lines.push_back(cleared == std::string::npos ? line : line.substr(cleared + 4));
  }
  return lines;
}

}  // namespace

TEST_CASE("Progress: elsewhere than on a terminal, plain lines without control characters") {
  std::ostringstream out;
  Progress progress({.stream = &out});
  one_epoch(progress);
  CHECK(out.str() ==
        "epoch 1/3  41%  step 41  loss 0.3123  lr 0.00098  4.1k samples/s  wait 3%  ETA 0:42\n"
        "epoch 1/3 100%  step 100  loss 0.25  lr 0.00098  4.1k samples/s  wait 3%  ETA 0:42  grad 1.5  refused 2\n"
        "epoch 1/3  step 100  evaluation:  accuracy 0.8765  loss 0.3\n"
        "epoch 1/3  done in 1:01\n"
        "finished in 1:01:40, 100 steps\n");
}

TEST_CASE("Progress: on a terminal a bar is redrawn in place, evaluations stay above it") {
  std::ostringstream out;
  Progress progress({.stream = &out, .terminal = true, .width = 140, .redraw_seconds = 0});
  one_epoch(progress);
  const auto lines = screen(out.str());
  REQUIRE(lines.size() == 3);
  CHECK(lines[0] == "epoch 1/3  step 100  evaluation:  accuracy 0.8765  loss 0.3");
  CHECK(
      lines[1] ==
      "epoch 1/3 100% [==============================]  loss 0.25  lr 0.00098  4.1k samples/s  wait 3%  ETA 0:42  grad "
      "1.5  refused 2");
  CHECK(lines[2] == "finished in 1:01:40, 100 steps");
  CHECK(out.str().find("\r\x1b[Kepoch 1/3  41% [============>.................]  loss 0.3123") != std::string::npos);
}

TEST_CASE("Progress: a redraw that comes too soon is left out, the last values are not") {
  std::ostringstream out;
  Progress progress({.stream = &out, .terminal = true, .width = 120, .redraw_seconds = 1e6});
  one_epoch(progress);
  CHECK(screen(out.str())[1].find("100% [====") != std::string::npos);
}

TEST_CASE("Progress: a line never exceeds the width") {
  for (const int width : {20, 33, 60, 80, 100}) {
    std::ostringstream out;
    Progress progress({.stream = &out, .terminal = true, .width = width, .redraw_seconds = 0});
    one_epoch(progress);
    CAPTURE(width, out.str());
    const auto bar = screen(out.str())[1];
    CHECK(bar.rfind("epoch 1/3", 0) == 0);
    CHECK(bar.size() < static_cast<size_t>(width));
  }
}

TEST_CASE("Progress: when an exception leaves fit the bar's line still ends") {
  std::ostringstream out;
  Progress progress({.stream = &out, .terminal = true, .width = 100});
  one_epoch(progress, true);
  const auto lines = screen(out.str());
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].find("41%") != std::string::npos);
  CHECK(lines[1] == "failed after 1:01:40, 41 steps");
  CHECK(out.str().find("\x1b[?25l") == std::string::npos);  // the cursor was never hidden
}

TEST_CASE("Progress: a stream of unknown length shows samples instead of a bar") {
  std::ostringstream out;
  Progress progress({.stream = &out, .terminal = true, .width = 100});
  TrainerState state;
  progress.on_fit_begin({state, 1});
  progress.on_epoch_begin({state});
  state.samples = 12345678;
  LogEvent log{state};
  log.loss = 1;
  log.epochs = 1;
  progress.on_log(log);
  CHECK(screen(out.str() + "\n")[0].rfind("epoch 1/1  12.35M samples  loss 1", 0) == 0);
}

TEST_CASE("Progress: a second fit counts its own epochs") {
  std::ostringstream out;
  Progress progress({.stream = &out});
  TrainerState state;
  state.epoch = 5;
  progress.on_fit_begin({state, 2});
  progress.on_epoch_begin({state});
  LogEvent log{state};
  log.epochs = 2;
  progress.on_log(log);
  CHECK(out.str().rfind("epoch 1/2", 0) == 0);
}

TEST_CASE("Progress: settings that cannot work are refused") {
  CHECK_THROWS_AS(Progress({.width = 5}), ConfigError);
  CHECK_THROWS_AS(Progress({.redraw_seconds = -1}), ConfigError);
}
