// SPDX-License-Identifier: Apache-2.0
// Profiles of the program that runs, as traces in memory: of a few calls, of a loop by hand, of a Trainer's fit.
//
//   const st::Trace trace = st::profile([&] { trainer.step(batch); }, {}, /*steps=*/3, /*warmup=*/2);
//   for (const st::SelfTime& row : st::self_times(st::Timeline(trace))) ...
//
//   st::Trainer trainer(net, ..., st::ProfileWindow({.skip = 100, .repeat_every = 1000}, st::TraceFolder{"profiles"}));
#pragma once

#include "saturate/trace/trace.hpp"
#include "saturate/trainer/events.hpp"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>

namespace saturate {

/// What is recorded of each event, through PyTorch's profiler (Kineto). Operators and ranges of the thread that
/// profiles, and of those that LibTorch starts for it (backward on a GPU), always are.
struct ProfileOptions {
  bool shapes = true;        ///< shapes, types, strides and plain values of operators' inputs
  bool flops = true;         ///< of operators that LibTorch knows a formula for
  bool memory = false;       ///< every allocation and release; no MemoryMeter can be used meanwhile
  bool cuda = true;          ///< kernels, copies and calls into the CUDA runtime, where there is a GPU
  bool cuda_syncs = true;    ///< waits of streams and events as the device sees them
  bool all_threads = false;  ///< operators of every other thread too: a loader's, a library's. None of them may be in
                             ///< an operator while the recording ends.
};

/// Which steps are recorded. Steps are counted from 0; the first window is [skip + warmup, skip + warmup + record).
struct ProfileSchedule {
  int64_t skip = 10;         ///< steps before anything happens
  int64_t warmup = 1;        ///< steps before each window in which the profiler is set up already, but not recording
  int64_t record = 2;        ///< steps a window
  int64_t repeat_every = 0;  ///< steps from one window's begin to the next one's; 0: one window
  int64_t max_windows = 0;   ///< 0: as many as come

  /// @throws ConfigError a negative value, nothing to record, windows that would meet, or max_windows without
  /// repeat_every.
  void validate() const;
};

/// Takes each finished window.
using TraceSink = std::function<void(Trace)>;

/// A sink that writes files for Perfetto, chrome://tracing and `saturate-trace`: `folder`/step_100/rank0.json.gz, where
/// 100 is the first step recorded. read_traces("folder/step_100") reads all ranks' of a window.
struct TraceFolder {
  std::filesystem::path folder;
  bool gzip = true;
  int64_t keep = 0;  ///< windows that stay, the newest; this rank's files of older ones are deleted. 0: all
  /// @throws Error naming the file when it cannot be written.
  void operator()(const Trace& trace) const;
};

/// Calls `step` `warmup` times, then `steps` times while recording, each in an annotation ProfilerStep#0, #1, ...
/// What `step` throws passes through; the profiler is off then.
/// @throws ConfigError steps below 1 or warmup below 0; another profile is being taken, by saturate, by Python or by
/// hand; a MemoryMeter lives on this thread.
Trace profile(const std::function<void()>& step, const ProfileOptions& options = {}, int64_t steps = 1,
              int64_t warmup = 0);

namespace detail {
class ProfileEngine;
}

/// Profiles a loop by hand:
///
///   st::Profiler profiler({.skip = 10}, [](st::Trace trace) { ... });
///   for (auto& batch : loader) {
///     train(batch);
///     profiler.step();
///   }
///   profiler.finish();
///
/// The first step begins where the object is made. All by one thread. An object that goes away in the middle of a
/// window (an exception in the loop) turns the profiler off and drops what it has.
class Profiler {
 public:
  /// @throws ConfigError see ProfileSchedule::validate and profile(); an empty sink.
  Profiler(const ProfileSchedule& schedule, TraceSink sink, const ProfileOptions& options = {});
  ~Profiler();
  Profiler(Profiler&&) noexcept;
  Profiler& operator=(Profiler&&) noexcept;

  /// Ends a step and begins the next one. What the sink throws passes through; the profiler is off then.
  /// @throws ConfigError a window is due, and another profile is being taken. After the first window that is a warning,
  /// and the window is left out: training goes on. StateError another thread than before.
  void step();
  /// Ends the last step. A window that has at least one whole step is given to the sink, with those.
  void finish();
  /// Steps ended.
  int64_t steps() const;
  /// Windows given to the sink.
  int64_t windows() const;
  bool recording() const;

 private:
  std::unique_ptr<detail::ProfileEngine> engine_;
};

/// The same as a callback of the Trainer: a step is a window of the Trainer's with the wait for its data. Evaluations
/// and what happens between epochs are in no step; at the end of an epoch they are not recorded either, where the
/// loader knows its length. The schedule goes on over several fits. When an exception leaves fit, the window is
/// dropped, and taken anew in the next fit.
class ProfileWindow {
 public:
  /// @throws ConfigError see ProfileSchedule::validate; an empty sink.
  ProfileWindow(const ProfileSchedule& schedule, TraceSink sink, const ProfileOptions& options = {});
  ~ProfileWindow();
  ProfileWindow(ProfileWindow&&) noexcept;
  ProfileWindow& operator=(ProfileWindow&&) noexcept;

  void on_fit_begin(const FitBegin& event);
  void on_epoch_begin(const EpochBegin& event);
  void on_step(const StepEvent& event);
  void on_evaluate(const EvaluateEvent& event);
  void on_fit_end(const FitEnd& event);

  int64_t windows() const;
  bool recording() const;

 private:
  std::unique_ptr<detail::ProfileEngine> engine_;
  int64_t windows_per_epoch_ = -1;
  int64_t left_in_epoch_ = -1;  ///< windows; negative: not known
};

}  // namespace saturate
