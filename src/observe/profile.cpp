// SPDX-License-Identifier: Apache-2.0
#include "saturate/observe/profile.hpp"

#include "../torch_seam/kineto.hpp"
#include "saturate/distributed/launch.hpp"
#include "saturate/error.hpp"
#include "saturate/log.hpp"
#include "saturate/observe/range.hpp"
#include "saturate/trace/write_trace.hpp"

#include <algorithm>
#include <charconv>
#include <exception>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace saturate {
namespace {

constexpr std::string_view step_prefix = "ProfilerStep#";
constexpr std::string_view step_folder_prefix = "step_";

void require_at_least(int64_t value, int64_t least, const char* name) {
  if (value >= least) return;
  throw ConfigError("ProfileSchedule: " + std::string(name) + " is " + std::to_string(value) + "; it must be " +
                    std::to_string(least) + " or more.");
}

torch_seam::CaptureConfig capture_config(const ProfileOptions& options) {
  return {.shapes = options.shapes,
          .memory = options.memory,
          .flops = options.flops,
          .cuda = options.cuda,
          .cuda_syncs = options.cuda_syncs,
          .all_threads = options.all_threads};
}

std::string step_name(int64_t number) { return std::string(step_prefix) + std::to_string(number); }

std::optional<int64_t> number_behind(std::string_view prefix, std::string_view text) {
  if (!text.starts_with(prefix)) return std::nullopt;
  text.remove_prefix(prefix.size());
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

int64_t first_step_of(const Trace& trace) {
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const TraceEvent& event : trace.events) {
    if (event.kind != EventKind::annotation) continue;
    if (const auto number = number_behind(step_prefix, trace.text(event.name))) first = std::min(first, *number);
  }
  return first == std::numeric_limits<int64_t>::max() ? 0 : first;
}

/// Takes out annotations of that name, the last one too unless it is to stay; those on devices as well.
void drop_annotations(Trace& trace, const std::string& name, bool keep_last) {
  const TextId id = trace.find(name);
  if (id == 0) return;
  for (const EventKind kind : {EventKind::annotation, EventKind::gpu_annotation}) {
    const auto is_it = [&](const TraceEvent& event) { return event.kind == kind && event.name == id; };
    int64_t left = std::count_if(trace.events.begin(), trace.events.end(), is_it) - (keep_last ? 1 : 0);
    std::erase_if(trace.events, [&](const TraceEvent& event) { return is_it(event) && left-- > 0; });
  }
}

void name_ranks(Trace& trace) {
  try {
    const distributed::Launch launch = distributed::Launch::from_environment();
    trace.rank = launch.rank;
    trace.world_size = launch.world_size;
  } catch (const ConfigError&) {  // variables that make no sense are for whoever trains with them to complain about
  }
}

/// A rank's files of the windows before the newest `keep`.
void delete_older(const std::filesystem::path& folder, const std::string& rank, int64_t keep) {
  std::vector<std::pair<int64_t, std::filesystem::path>> windows;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const auto number = number_behind(step_folder_prefix, entry.path().filename().string());
    if (!number) continue;
    for (const char* ending : {".json", ".json.gz"}) {
      if (std::filesystem::exists(entry.path() / (rank + ending))) {
        windows.emplace_back(*number, entry.path() / (rank + ending));
      }
    }
  }
  std::sort(windows.begin(), windows.end());
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < windows.size(); ++i) {
    std::error_code ignored;  // another program may have been faster
    std::filesystem::remove(windows[i].second, ignored);
    std::filesystem::remove(windows[i].second.parent_path(),
                            ignored);  // only when it is empty: no other rank's is there
  }
}

}  // namespace

namespace detail {

/// Steps and windows, whoever counts them out.
class ProfileEngine {
 public:
  ProfileEngine(const ProfileSchedule& schedule, TraceSink sink, const ProfileOptions& options)
      : schedule_(schedule), sink_(std::move(sink)), options_(options) {
    schedule_.validate();
    if (!sink_) throw ConfigError("profile: the sink is empty: give a function that takes each window's Trace.");
    first_ = schedule_.skip + schedule_.warmup;
  }
  ~ProfileEngine() { drop(); }
  ProfileEngine(const ProfileEngine&) = delete;
  ProfileEngine& operator=(const ProfileEngine&) = delete;

  bool between_steps() const { return !in_step_; }
  int64_t steps() const { return step_; }
  int64_t windows() const { return windows_; }
  bool recording() const { return recording_; }

  void begin_step() {
    if (capture_) capture_->require_thread();
    in_step_ = true;
    if (over_ || step_ < first_ - schedule_.warmup) return;
    if (!capture_ && !attempt([&] { capture_.emplace(capture_config(options_)); })) return;
    if (step_ < first_) return;
    if (!recording_ && !attempt([&] { capture_->start(); })) return;
    recording_ = true;
    capture_->resume();
    annotation_.emplace(step_name(step_).c_str());
  }

  void end_step() {
    if (capture_) capture_->require_thread();
    in_step_ = false;
    annotation_.reset();
    ++step_;
    if (recording_ && step_ >= first_ + schedule_.record) end_window();
  }

  /// Nothing until the next begin_step() is recorded.
  void pause() {
    if (recording_) capture_->pause();
  }

  /// The step begins only here; what has been since begin_step() is in no step.
  void restart_step() {
    if (!annotation_) return;
    annotation_.reset();
    restarted_.insert(step_);
    annotation_.emplace(step_name(step_).c_str());
  }

  /// The step that has begun never ends.
  void finish() {
    if (capture_) capture_->require_thread();
    in_step_ = false;
    const bool empty_step = annotation_.has_value();
    annotation_.reset();
    if (!recording_ || step_ <= first_) return drop();
    end_window(empty_step);
  }

  /// Ends without a trace; the window comes anew.
  void drop() {
    in_step_ = false;
    annotation_.reset();
    capture_.reset();
    restarted_.clear();
    recording_ = false;
    if (first_ < step_ + schedule_.warmup) first_ = step_ + schedule_.warmup;
  }

 private:
  // @return false: this window is left out.
  template <class Action>
  bool attempt(Action&& action) {
    try {
      action();
      return true;
    } catch (const ConfigError& error) {
      capture_.reset();
      if (windows_ == 0) throw;
      log::warn(std::string(error.what()) + " The window at step " + std::to_string(first_) + " is left out.");
      next_window();
      return false;
    }
  }

  void end_window(bool empty_step = false) {
    recording_ = false;
    Trace trace;
    try {
      trace = capture_->stop();
    } catch (...) {
      capture_.reset();
      throw;
    }
    capture_.reset();
    for (const int64_t number : restarted_) drop_annotations(trace, step_name(number), /*keep_last=*/true);
    restarted_.clear();
    if (empty_step) drop_annotations(trace, step_name(step_), /*keep_last=*/false);
    name_ranks(trace);
    trace.name = "steps " + std::to_string(first_) + " to " + std::to_string(step_ - 1);
    ++windows_;
    next_window();
    sink_(std::move(trace));
  }

  void next_window() {
    over_ = schedule_.repeat_every == 0 || (schedule_.max_windows > 0 && windows_ >= schedule_.max_windows);
    do first_ += schedule_.repeat_every;
    while (!over_ && first_ < step_ + schedule_.warmup);  // the window that fit's end has cut off may lie behind
  }

  ProfileSchedule schedule_;
  TraceSink sink_;
  ProfileOptions options_;
  int64_t step_ = 0;   // number of the step that runs or comes next
  int64_t first_ = 0;  // of the window that runs or comes next
  int64_t windows_ = 0;
  bool over_ = false, recording_ = false, in_step_ = false;
  std::set<int64_t> restarted_;
  std::optional<torch_seam::KinetoCapture> capture_;
  std::optional<Range> annotation_;  // behind the capture: ends before it
};

}  // namespace detail

void ProfileSchedule::validate() const {
  require_at_least(skip, 0, "skip");
  require_at_least(warmup, 0, "warmup");
  require_at_least(record, 1, "record");
  require_at_least(repeat_every, 0, "repeat_every");
  require_at_least(max_windows, 0, "max_windows");
  if (repeat_every > 0 && repeat_every < warmup + record) {
    throw ConfigError("ProfileSchedule: repeat_every is " + std::to_string(repeat_every) +
                      ", less than warmup + record = " + std::to_string(warmup + record) +
                      ": a window would begin in the one before; make it larger.");
  }
  if (repeat_every == 0 && max_windows > 1) {
    throw ConfigError("ProfileSchedule: max_windows is " + std::to_string(max_windows) +
                      ", but repeat_every is 0, which means one window; set repeat_every.");
  }
}

void TraceFolder::operator()(const Trace& trace) const {
  const std::string rank = "rank" + std::to_string(std::max(trace.rank, 0));
  const auto window = folder / (std::string(step_folder_prefix) + std::to_string(first_step_of(trace)));
  std::error_code error;
  std::filesystem::create_directories(window, error);
  if (error) throw Error("TraceFolder: cannot make the folder " + window.string() + ": " + error.message());
  write_trace(trace, (window / (rank + (gzip ? ".json.gz" : ".json"))).string());
  if (keep > 0) delete_older(folder, rank, keep);
}

Trace profile(const std::function<void()>& step, const ProfileOptions& options, int64_t steps, int64_t warmup) {
  Trace result;
  Profiler profiler(
      {.skip = 0, .warmup = warmup, .record = steps}, [&](Trace trace) { result = std::move(trace); }, options);
  for (int64_t i = 0; i < warmup + steps; ++i) {
    step();
    profiler.step();
  }
  result.name = "profile";
  return result;
}

Profiler::Profiler(const ProfileSchedule& schedule, TraceSink sink, const ProfileOptions& options)
    : engine_(std::make_unique<detail::ProfileEngine>(schedule, std::move(sink), options)) {
  engine_->begin_step();
}
Profiler::~Profiler() = default;
Profiler::Profiler(Profiler&&) noexcept = default;
Profiler& Profiler::operator=(Profiler&&) noexcept = default;

void Profiler::step() {
  engine_->end_step();
  engine_->begin_step();
}
void Profiler::finish() { engine_->finish(); }
int64_t Profiler::steps() const { return engine_->steps(); }
int64_t Profiler::windows() const { return engine_->windows(); }
bool Profiler::recording() const { return engine_->recording(); }

ProfileWindow::ProfileWindow(const ProfileSchedule& schedule, TraceSink sink, const ProfileOptions& options)
    : engine_(std::make_unique<detail::ProfileEngine>(schedule, std::move(sink), options)) {}
ProfileWindow::~ProfileWindow() = default;
ProfileWindow::ProfileWindow(ProfileWindow&&) noexcept = default;
ProfileWindow& ProfileWindow::operator=(ProfileWindow&&) noexcept = default;

void ProfileWindow::on_fit_begin(const FitBegin& event) { windows_per_epoch_ = event.windows_per_epoch.value_or(-1); }

void ProfileWindow::on_epoch_begin(const EpochBegin&) {
  left_in_epoch_ = windows_per_epoch_;
  if (engine_->between_steps()) {
    engine_->begin_step();
  } else {
    engine_->restart_step();
  }
}

void ProfileWindow::on_step(const StepEvent& event) {
  engine_->end_step();
  --left_in_epoch_;
  if (event.evaluates || left_in_epoch_ == 0) {
    engine_->pause();
  } else {
    engine_->begin_step();
  }
}

// The last window of an epoch is followed by on_epoch_begin, or by the end.
void ProfileWindow::on_evaluate(const EvaluateEvent&) {
  if (!engine_->between_steps()) {
    engine_->restart_step();
  } else if (left_in_epoch_ != 0) {
    engine_->begin_step();
  }
}

void ProfileWindow::on_fit_end(const FitEnd& event) {
  if (event.failed) {
    engine_->drop();
  } else {
    engine_->finish();
  }
}

int64_t ProfileWindow::windows() const { return engine_->windows(); }
bool ProfileWindow::recording() const { return engine_->recording(); }

}  // namespace saturate
