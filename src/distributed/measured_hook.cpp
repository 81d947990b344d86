// SPDX-License-Identifier: Apache-2.0
#include "saturate/distributed/measured_hook.hpp"

#include "saturate/error.hpp"

#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <mutex>

namespace saturate::distributed {
namespace {

/// A point in time of the host, or of what a GPU's current stream has been given so far.
class Moment {
 public:
  static Moment now(c10::Device device) {
    Moment moment;
    moment.host_ = std::chrono::steady_clock::now();
    if (device.is_cpu()) return moment;
    const c10::DeviceGuard guard(device);
    moment.event_ = std::make_shared<c10::Event>(device.type(), c10::EventFlag::BACKEND_DEFAULT);  // with its time
    moment.event_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    return moment;
  }
  /// Seconds; waits for a GPU to come to both.
  double since(const Moment& earlier) const {
    if (event_ == nullptr || earlier.event_ == nullptr) {
      return std::chrono::duration<double>(host_ - earlier.host_).count();
    }
    earlier.event_->synchronize();
    event_->synchronize();
    return 1e-3 * earlier.event_->elapsedTime(*event_);
  }

 private:
  std::chrono::steady_clock::time_point host_;
  std::shared_ptr<c10::Event> event_;
};

struct Span {
  double begin, end;
};

/// Length of the union.
double covered(std::vector<Span> spans) {
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  double total = 0, reached = -1e300;
  for (const Span& span : spans) {
    total += std::max(0.0, span.end - std::max(span.begin, reached));
    reached = std::max(reached, span.end);
  }
  return total;
}

std::vector<Span> on_their_way(const WindowTimes& window) {
  std::vector<Span> spans;
  for (const BucketTimes& bucket : window.buckets) spans.push_back({bucket.launched, bucket.done});
  return spans;
}

}  // namespace

double WindowTimes::communication() const { return covered(on_their_way(*this)); }

double WindowTimes::exposed() const {
  std::vector<Span> after;
  for (const Span& span : on_their_way(*this)) {
    if (span.end > backward_end) after.push_back({std::max(span.begin, backward_end), span.end});
  }
  return covered(after) + inside_hook();
}

double WindowTimes::inside_hook() const {
  std::vector<Span> inside;
  for (const BucketTimes& bucket : buckets) {
    // No longer than the bucket was on its way, so that exposed() is a part of communication().
    const double end = std::min({bucket.issued, backward_end, bucket.done});
    if (end > bucket.launched) inside.push_back({bucket.launched, end});
  }
  return covered(inside);
}

int64_t WindowTimes::bytes() const {
  int64_t total = 0;
  for (const BucketTimes& bucket : buckets) total += bucket.bytes;
  return total;
}

void MeasuredHookOptions::validate() const {
  if (keep < 1) throw ConfigError(c10::str("MeasuredHookOptions: keep is ", keep, "; give at least 1 window"));
}

/// Written to by backward's thread, and by those on which buckets complete.
struct MeasuredHook::Window {
  struct Of {
    int64_t bytes, gradient_bytes, elements;
    Moment launched, issued, done;
    bool is_issued = false, is_done = false;
  };
  std::mutex mutex;
  std::map<std::size_t, Of> buckets;
  std::optional<Moment> begin, end;
  int64_t number = 0;
  bool begin_is_known = false, last_seen = false;

  bool complete() {
    const std::lock_guard lock(mutex);
    return last_seen && end.has_value() && std::all_of(buckets.begin(), buckets.end(), [](const auto& bucket) {
             return bucket.second.is_done && bucket.second.is_issued;
           });
  }
  // Backward is over when its last gradient is there: the engine then calls what was queued, in that order, and the
  // Reducer, which waits for buckets there, queues after its last bucket's launch.
  static void tell_end(const std::shared_ptr<Window>& window, c10::Device device) {
    const auto mark = [window, device] {
      const std::lock_guard lock(window->mutex);
      window->end = Moment::now(device);
    };
    // A static graph's first window is reduced after backward.
    if (torch::autograd::get_current_graph_task_id() == -1) return mark();
    torch::autograd::Engine::get_default_engine().queue_callback(mark);
  }
};

struct MeasuredHook::Recorder {
  mutable std::mutex mutex;
  std::deque<std::shared_ptr<Window>> windows;
  std::shared_ptr<Window> current;    // has begun
  std::optional<Moment> first_begin;  // of all
  std::size_t keep = 1;
  int64_t count = 0;

  std::shared_ptr<Window> begin(c10::Device device, bool known) {
    auto window = std::make_shared<Window>();
    window->begin = Moment::now(device);
    window->begin_is_known = known;
    const std::lock_guard lock(mutex);
    current = window;
    return window;
  }
  void keep_current() {
    const std::lock_guard lock(mutex);
    if (!first_begin) first_begin = current->begin;
    current->number = count++;
    windows.push_back(current);
    if (windows.size() > keep) windows.pop_front();
  }
};

MeasuredHook::MeasuredHook(std::shared_ptr<CommHook> hook, MeasuredHookOptions options)
    : hook_(hook != nullptr ? std::move(hook) : std::make_shared<AllReduce>()),
      recorder_(std::make_shared<Recorder>()) {
  options.validate();
  if (dynamic_cast<const MeasuredHook*>(hook_.get()) != nullptr) {
    throw ConfigError("MeasuredHook: of a MeasuredHook; give it the hook that reduces");
  }
  recorder_->keep = static_cast<std::size_t>(options.keep);
}

MeasuredHook::~MeasuredHook() = default;

void MeasuredHook::attach(const ProcessGroup& group) {
  CommHook::attach(group);
  hook_->attach(group);
}

void MeasuredHook::before_backward() { recorder_->begin(group().device(), /*known=*/true); }

/// A window begins with its first bucket, unless before_backward has begun it.
std::shared_ptr<MeasuredHook::Window> MeasuredHook::window_of(const Bucket& bucket) {
  std::shared_ptr<Window> window = recorder_->current;
  if (bucket.index != 0 && window != nullptr) return window;
  if (window == nullptr || !window->buckets.empty()) window = recorder_->begin(group().device(), /*known=*/false);
  recorder_->keep_current();
  Window::tell_end(window, group().device());
  return window;
}

CommHook::Future MeasuredHook::reduce(Bucket& bucket, double divisor) {
  const c10::Device device = bucket.gradients.device();
  const auto window = window_of(bucket);
  const std::size_t index = bucket.index;
  {
    const std::lock_guard lock(window->mutex);
    Window::Of& of = window->buckets[index];
    of.bytes = hook_->bytes_sent(bucket);
    of.gradient_bytes = static_cast<int64_t>(bucket.gradients.nbytes());
    of.elements = bucket.gradients.numel();
    of.launched = Moment::now(device);
    window->last_seen = window->last_seen || bucket.last;
  }
  const Future reduced = hook_->reduce(bucket, divisor);
  {
    const std::lock_guard lock(window->mutex);
    window->buckets[index].issued = Moment::now(device);
    window->buckets[index].is_issued = true;
  }
  // Whoever waits for what this returns is told after the time is taken. On a GPU the callback's stream waits for the
  // bucket, and so does the event in it.
  return reduced->then(
      [window, index, device](c10::ivalue::Future& done) {
        c10::IValue value = done.value();  // throws what went wrong
        const std::lock_guard lock(window->mutex);
        window->buckets[index].done = Moment::now(device);
        window->buckets[index].is_done = true;
        return value;
      },
      reduced->elementType());
}

std::vector<WindowTimes> MeasuredHook::windows() const {
  const std::lock_guard lock(recorder_->mutex);
  std::vector<WindowTimes> result;
  const Window* before = nullptr;
  for (const auto& window : recorder_->windows) {
    if (!window->complete()) {
      before = nullptr;
      continue;
    }
    WindowTimes times;
    times.number = window->number;
    times.begin_is_known = window->begin_is_known;
    times.backward_end = window->end->since(*window->begin);
    times.start = window->begin->since(*recorder_->first_begin);
    if (before != nullptr) times.step = window->end->since(*before->end);
    for (const auto& [index, of] : window->buckets) {
      times.buckets.push_back({index, of.bytes, of.gradient_bytes, of.elements, of.launched.since(*window->begin),
                               of.issued.since(*window->begin), of.done.since(*window->begin)});
    }
    before = window.get();
    result.push_back(std::move(times));
  }
  return result;
}

void MeasuredHook::clear() {
  const std::lock_guard lock(recorder_->mutex);
  recorder_->windows.clear();
}

}  // namespace saturate::distributed
