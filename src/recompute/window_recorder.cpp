// SPDX-License-Identifier: Apache-2.0
#include "window_recorder.hpp"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace saturate::detail {
namespace {

// What a block holds besides its inputs, and a plain run does not: states of random generators, 5 KiB each.
constexpr int64_t state_bytes = 8192;

}  // namespace

class WindowRecorder::Listener final : public FrameListener {
 public:
  Listener(std::shared_ptr<WindowRecorder> recorder, std::size_t visit)
      : recorder_(std::move(recorder)), visit_(visit) {}

  void saved() override { recorder_->note(MemoryEvent::Kind::saved, visit_); }
  void forward_done(std::vector<DroppedStorage> dropped, int64_t input_bytes, int64_t unsaved_input_bytes) override {
    recorder_->forward_done(visit_, {visit_, std::move(dropped), unsaved_input_bytes}, input_bytes);
  }
  void replay_begins() override { recorder_->note(MemoryEvent::Kind::replay, visit_); }
  void replay_saved() override { recorder_->note(MemoryEvent::Kind::replay_saved, visit_); }
  void replay_done() override { recorder_->note(MemoryEvent::Kind::replayed, visit_); }

 private:
  std::shared_ptr<WindowRecorder> recorder_;
  std::size_t visit_;
};

WindowRecorder::WindowRecorder(MemoryGauge& gauge, std::function<double()> clock)
    : gauge_(&gauge), clock_(std::move(clock)), base_(gauge.level()) {
  gauge.reset_peak();
}

std::size_t WindowRecorder::enter(std::size_t part) {
  const std::size_t visit = record_.visits.size();
  record_.visits.emplace_back().part = part;
  note(MemoryEvent::Kind::enter, visit);
  if (clock_) entered_at_ = clock_();
  return visit;
}

std::shared_ptr<FrameListener> WindowRecorder::listener(std::size_t visit) {
  return std::make_shared<Listener>(shared_from_this(), visit);
}

void WindowRecorder::leave(std::size_t visit) {
  if (clock_) record_.visits[visit].seconds = clock_() - entered_at_;
  note(MemoryEvent::Kind::leave, visit);
}

void WindowRecorder::forward_done(std::size_t visit, Dropped dropped, int64_t input_bytes) {
  const std::lock_guard lock(mutex_);
  if (gauge_ == nullptr) return;
  record_.visits[visit].input_bytes = input_bytes;
  dropped_.push_back(std::move(dropped));
}

void WindowRecorder::forward_over() {
  const std::lock_guard lock(mutex_);
  std::unordered_map<const c10::StorageImpl*, int> visits;  // that have dropped it
  for (Dropped& one : dropped_) {
    auto& list = one.storages;
    const auto by_address = [](const DroppedStorage& a, const DroppedStorage& b) {
      return std::less<>()(a.storage._unsafe_get_target(), b.storage._unsafe_get_target());
    };
    std::sort(list.begin(), list.end(), by_address);
    const auto same = [&](const DroppedStorage& a, const DroppedStorage& b) { return !by_address(a, b); };
    list.erase(std::unique(list.begin(), list.end(), same), list.end());
    list.erase(std::remove_if(list.begin(), list.end(), [](const DroppedStorage& s) { return !s.storage.expired(); }),
               list.end());
    for (const DroppedStorage& storage : list) ++visits[storage.storage._unsafe_get_target()];
  }
  for (const Dropped& one : dropped_) {
    Visit& visit = record_.visits[one.visit];
    int64_t alone = 0;
    for (const DroppedStorage& storage : one.storages) {
      visit.bytes += storage.bytes;
      if (visits[storage.storage._unsafe_get_target()] == 1) alone += storage.bytes;
    }
    visit.least_bytes = std::max<int64_t>(0, alone - one.unsaved_input_bytes - state_bytes);
  }
  dropped_.clear();
}

WindowRecord WindowRecorder::finish() {
  note(MemoryEvent::Kind::end, 0);
  close();
  return std::move(record_);
}

void WindowRecorder::close() {
  const std::lock_guard lock(mutex_);
  gauge_ = nullptr;
  dropped_.clear();
}

void WindowRecorder::note(MemoryEvent::Kind kind, std::size_t visit) {
  const std::lock_guard lock(mutex_);
  if (gauge_ == nullptr) return;
  MemoryEvent event{kind, visit, gauge_->level() - base_, gauge_->peak() - base_};
  gauge_->reset_peak();
  record_.peak = std::max(record_.peak, event.peak);
  auto& events = record_.events;
  const bool again =
      kind == MemoryEvent::Kind::saved && !events.empty() && events.back().kind == kind && events.back().visit == visit;
  if (again) {
    event.peak = std::max(event.peak, events.back().peak);
    events.back() = event;
  } else {
    events.push_back(event);
  }
}

}  // namespace saturate::detail
