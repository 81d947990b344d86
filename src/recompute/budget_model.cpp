// SPDX-License-Identifier: Apache-2.0
#include "budget_model.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

namespace saturate::detail {
namespace {

constexpr std::size_t most_passes = 16;
constexpr std::size_t most_states = 4096;

void raise(int64_t& peak, int64_t value) { peak = std::max(peak, value); }

// From events to passes ----------------------------------------------------------------------------------------------

class Reader {
 public:
  explicit Reader(const WindowRecord& record)
      : record_(record), visits_(record.visits.size()), done_(visits_.size()), moments_(visits_.size()) {
    for (std::size_t i = 0; i < visits_.size(); ++i) {
      const Visit& seen = record.visits[i];
      visits_[i].part = seen.part;
      visits_[i].bytes = seen.bytes;
      visits_[i].least_bytes = seen.least_bytes;
    }
    for (const MemoryEvent& event : record.events) {
      if (event.kind == MemoryEvent::Kind::replay) visits_[event.visit].replayed = true;
    }
  }

  std::vector<PassModel> read() {
    for (const MemoryEvent& event : record_.events) {
      if (stretch_) raise(visits_[stretch_->visit].*stretch_->peak, event.peak);
      Moments& moments = moments_[event.visit];
      switch (event.kind) {
        case MemoryEvent::Kind::enter:
          if (std::exchange(backward_, false)) begin_pass(event);
          moments.enter = event.level;
          entered_ = event.visit + 1;
          stretch_ = {event.visit, &VisitModel::forward};
          break;
        case MemoryEvent::Kind::saved: moments.saved = event.level; break;
        case MemoryEvent::Kind::leave:
          moments.tail = event.peak - moments.saved;
          stretch_ = {event.visit, &VisitModel::after};
          break;
        case MemoryEvent::Kind::replay:
          backward_ = true;
          moments.replay = event.level;
          done_[event.visit] = true;
          stretch_ = in_backward(event.visit, &VisitModel::replay);
          break;
        case MemoryEvent::Kind::replay_saved: note_kept_forward(event); break;
        case MemoryEvent::Kind::replayed: stretch_ = in_backward(event.visit, &VisitModel::backward); break;
        case MemoryEvent::Kind::end: break;
      }
    }
    for (VisitModel& visit : visits_) {
      if (visit.kept_forward == 0) visit.kept_forward = visit.forward + visit.bytes;  // it never ran again
    }
    return split();
  }

 private:
  struct Stretch {
    std::size_t visit;
    int64_t VisitModel::*peak;
  };

  /// Of a visit, the levels when its forward began, when it had saved its last tensor and when its second forward
  /// began; and how far memory rose above the second of these until forward ended.
  struct Moments {
    int64_t enter = 0, saved = 0, replay = 0, tail = 0;
  };

  // The second forward keeps what it saves: up to its last tensor it shows what a forward that keeps takes. What comes
  // then was seen in the first forward.
  void note_kept_forward(const MemoryEvent& event) {
    const Moments& moments = moments_[event.visit];
    const int64_t highest = std::max(event.peak, event.level + moments.tail);
    raise(visits_[event.visit].kept_forward, moments.enter + highest - moments.replay);
  }

  void begin_pass(const MemoryEvent& event) {
    begins_.push_back(event.visit);
    before_.push_back(event.peak);
  }

  // A later visit of the pass whose own backward is still to come holds its bytes in this stretch too.
  Stretch in_backward(std::size_t visit, int64_t VisitModel::*peak) const {
    for (std::size_t later = entered_; --later > visit;) {
      if (visits_[later].replayed && !done_[later]) return {later, &VisitModel::after};
    }
    return {visit, peak};
  }

  std::vector<PassModel> split() const {
    std::vector<PassModel> passes;
    for (std::size_t i = 0; i < begins_.size(); ++i) {
      const auto end = i + 1 < begins_.size() ? begins_[i + 1] : visits_.size();
      passes.push_back({before_[i],
                        {visits_.begin() + static_cast<std::ptrdiff_t>(begins_[i]),
                         visits_.begin() + static_cast<std::ptrdiff_t>(end)}});
    }
    return passes;
  }

  const WindowRecord& record_;
  std::vector<VisitModel> visits_;
  std::vector<bool> done_;
  std::vector<Moments> moments_;
  std::vector<std::size_t> begins_;
  std::vector<int64_t> before_;
  std::optional<Stretch> stretch_;
  std::size_t entered_ = 0;  // visits so far
  bool backward_ = true;     // since the last forward
};

bool same_sequence(const PassModel& a, const PassModel& b) {
  return std::equal(a.visits.begin(), a.visits.end(), b.visits.begin(), b.visits.end(),
                    [](const VisitModel& x, const VisitModel& y) { return x.part == y.part; });
}

void merge(PassModel& into, const PassModel& other) {
  raise(into.before, other.before);
  for (std::size_t i = 0; i < into.visits.size(); ++i) {
    VisitModel& visit = into.visits[i];
    const VisitModel& seen = other.visits[i];
    for (const auto field : {&VisitModel::forward, &VisitModel::kept_forward, &VisitModel::after, &VisitModel::replay,
                             &VisitModel::backward, &VisitModel::bytes}) {
      raise(visit.*field, seen.*field);
    }
    visit.least_bytes = std::min(visit.least_bytes, seen.least_bytes);
    visit.replayed = visit.replayed || seen.replayed;
  }
}

bool is_kept(const Kept& kept, std::size_t part) { return part < kept.size() && kept[part]; }

int64_t peak_of(const PassModel& pass, const Kept& kept) {
  int64_t peak = pass.before, held = 0;
  for (const VisitModel& visit : pass.visits) {
    const bool keeps = is_kept(kept, visit.part);
    raise(peak, held + (keeps ? visit.kept_forward : std::max(visit.forward, visit.replay)));
    raise(peak, held + visit.backward);
    if (keeps) held += visit.bytes;
    raise(peak, held + visit.after);
  }
  return peak;
}

int64_t least_peak_of(const PassModel& pass, const Kept& kept) {
  int64_t peak = pass.before, held = 0;
  for (const VisitModel& visit : pass.visits) {
    raise(peak, held + visit.backward);
    if (is_kept(kept, visit.part)) {
      held += visit.least_bytes;
    } else {
      raise(peak, held + std::max(visit.forward, visit.replay));
    }
    raise(peak, held + visit.after);
  }
  return peak;
}

// The dynamic program ------------------------------------------------------------------------------------------------

/// Goes through the visits of a pass and keeps, of all choices so far, those that no other one beats in both the bytes
/// held and the time saved. A part that is visited again holds all its bytes from its first visit on.
class Solver {
 public:
  Solver(const BudgetModel& model, const PassModel& pass, int64_t budget)
      : model_(model), pass_(pass), budget_(budget) {}

  Kept solve() {
    if (pass_.before <= budget_) layers_.push_back({State{}});
    for (std::size_t v = 0; v < pass_.visits.size() && !layers_.empty(); ++v) step(v);
    Kept kept(model_.parts(), false);
    if (layers_.empty() || layers_.back().empty()) return kept;
    std::size_t at = layers_.back().size() - 1;  // the one of most bytes has saved most
    for (std::size_t v = pass_.visits.size(); v > 0; --v) {
      const State& state = layers_[v][at];
      if (state.keeps) kept[pass_.visits[v - 1].part] = true;
      at = state.from;
    }
    return kept;
  }

 private:
  struct State {
    int64_t held = 0;
    double saved = 0;
    std::size_t from = 0;  // in the layer before
    bool keeps = false;
  };

  void step(std::size_t v) {
    const VisitModel& visit = pass_.visits[v];
    const bool again = count(0, v, visit.part) > 0;
    const bool alone = !again && count(v + 1, pass_.visits.size(), visit.part) == 0;
    int64_t left = std::max({visit.forward, visit.replay, visit.backward, visit.after});
    if (again) left = std::max(left, visit.kept_forward - visit.bytes);
    const int64_t bytes = alone ? visit.bytes : bytes_in_pass(visit.part);
    const int64_t kept = std::max({visit.kept_forward, visit.backward, visit.after + bytes});
    std::vector<State> next;
    const std::vector<State>& states = layers_.back();
    for (std::size_t i = 0; i < states.size(); ++i) {
      const State& state = states[i];
      if (state.held + left <= budget_) next.push_back({state.held, state.saved, i, false});
      if (again || !model_.may_keep(visit.part) || state.held + kept > budget_) continue;
      next.push_back({state.held + bytes, state.saved + model_.seconds(visit.part), i, true});
    }
    prune(next);
    layers_.push_back(std::move(next));
  }

  void prune(std::vector<State>& states) const {
    std::sort(states.begin(), states.end(),
              [](const State& a, const State& b) { return a.held != b.held ? a.held < b.held : a.saved > b.saved; });
    std::vector<State> best;
    for (const State& state : states) {
      if (best.empty() || state.saved > best.back().saved) best.push_back(state);
    }
    // Too many to go on with: the fastest of each bucket.
    const int64_t bucket = budget_ / static_cast<int64_t>(most_states) + 1;
    if (best.size() > most_states) {
      states.clear();
      for (std::size_t i = 0; i < best.size(); ++i) {
        if (i + 1 == best.size() || best[i].held / bucket != best[i + 1].held / bucket) states.push_back(best[i]);
      }
    } else {
      states = std::move(best);
    }
  }

  std::ptrdiff_t count(std::size_t from, std::size_t to, std::size_t part) const {
    const auto begin = pass_.visits.begin();
    return std::count_if(begin + static_cast<std::ptrdiff_t>(from), begin + static_cast<std::ptrdiff_t>(to),
                         [&](const VisitModel& visit) { return visit.part == part; });
  }
  int64_t bytes_in_pass(std::size_t part) const {
    int64_t bytes = 0;
    for (const VisitModel& visit : pass_.visits) bytes += visit.part == part ? visit.bytes : 0;
    return bytes;
  }

  const BudgetModel& model_;
  const PassModel& pass_;
  int64_t budget_;
  std::vector<std::vector<State>> layers_;
};

}  // namespace

bool contains(const Kept& outer, const Kept& inner) {
  for (std::size_t part = 0; part < inner.size(); ++part) {
    if (inner[part] && !is_kept(outer, part)) return false;
  }
  return true;
}

std::vector<PassModel> passes_of(const WindowRecord& all_recomputed) { return Reader(all_recomputed).read(); }

void BudgetModel::add(const WindowRecord& record) {
  for (const Visit& visit : record.visits) {
    if (visit.part >= parts_.size()) parts_.resize(visit.part + 1);
    raise(parts_[visit.part].input_bytes, visit.input_bytes);
    parts_[visit.part].runs = true;
  }
  take_times(record);
  for (PassModel& pass : passes_of(record)) {
    const auto same = std::find_if(passes_.begin(), passes_.end(),
                                   [&](const PassModel& known) { return same_sequence(known, pass); });
    if (same != passes_.end()) {
      merge(*same, pass);
    } else if (passes_.size() < most_passes) {
      passes_.push_back(std::move(pass));
    }
  }
}

void BudgetModel::take_times(const WindowRecord& record) {
  std::vector<double> seconds(parts_.size(), 0);
  for (const Visit& visit : record.visits) seconds[visit.part] += visit.seconds;
  for (std::size_t part = 0; part < parts_.size(); ++part) {
    if (seconds[part] <= 0) continue;
    double& lowest = parts_[part].seconds;
    lowest = lowest > 0 ? std::min(lowest, seconds[part]) : seconds[part];
  }
}

void BudgetModel::forget_memory() {
  passes_.clear();
  for (Part& part : parts_) part.runs = false;
}

void BudgetModel::set(std::vector<PassModel> passes, std::vector<double> seconds) {
  passes_ = std::move(passes);
  parts_.clear();
  for (const double one : seconds) parts_.push_back({one});
}

int64_t BudgetModel::bytes(std::size_t part) const {
  int64_t bytes = 0;
  for (const PassModel& pass : passes_) {
    int64_t sum = 0;
    for (const VisitModel& visit : pass.visits) sum += visit.part == part ? visit.bytes : 0;
    raise(bytes, sum);
  }
  return bytes;
}

std::vector<std::size_t> BudgetModel::order() const {
  std::vector<std::size_t> order;
  for (const PassModel& pass : passes_) {
    for (const VisitModel& visit : pass.visits) {
      if (std::find(order.begin(), order.end(), visit.part) == order.end()) order.push_back(visit.part);
    }
  }
  return order;
}

bool BudgetModel::may_keep(std::size_t part) const {
  bool known = false, free = true;
  for (const PassModel& pass : passes_) {
    for (const VisitModel& visit : pass.visits) {
      if (visit.part != part) continue;
      if (visit.replayed) return true;
      known = true;
      free = free && visit.bytes == 0;
    }
  }
  return known && free;
}

int64_t BudgetModel::peak(const Kept& kept) const {
  int64_t peak = 0;
  for (const PassModel& pass : passes_) raise(peak, peak_of(pass, kept));
  return peak;
}

int64_t BudgetModel::least_peak(const Kept& kept) const {
  int64_t peak = 0;
  for (const PassModel& pass : passes_) raise(peak, least_peak_of(pass, kept));
  return peak;
}

double BudgetModel::saved(const Kept& kept) const {
  double seconds = 0;
  for (std::size_t part = 0; part < parts_.size(); ++part) {
    if (is_kept(kept, part)) seconds += parts_[part].seconds;
  }
  return seconds;
}

const PassModel& BudgetModel::widest() const {
  const Kept everything(parts_.size(), true);
  return *std::max_element(passes_.begin(), passes_.end(), [&](const PassModel& a, const PassModel& b) {
    return peak_of(a, everything) < peak_of(b, everything);
  });
}

Kept BudgetModel::solve(int64_t budget) const {
  Kept kept(parts_.size(), false);
  if (passes_.empty() || peak(kept) > budget) return kept;
  kept = Solver(*this, widest(), budget).solve();
  // What another pass does not bear: the least time for its bytes first.
  while (peak(kept) > budget) {
    std::size_t worst = parts_.size();
    for (std::size_t part = 0; part < parts_.size(); ++part) {
      const auto worth = [&](std::size_t p) { return seconds(p) / static_cast<double>(bytes(p) + 1); };
      if (kept[part] && (worst == parts_.size() || worth(part) < worth(worst))) worst = part;
    }
    kept[worst] = false;
  }
  improve(kept, budget);
  return kept;
}

void BudgetModel::improve(Kept& kept, int64_t budget) const {
  std::vector<std::size_t> candidates(parts_.size());
  std::iota(candidates.begin(), candidates.end(), std::size_t{0});
  std::stable_sort(candidates.begin(), candidates.end(),
                   [&](std::size_t a, std::size_t b) { return seconds(a) > seconds(b); });
  for (const std::size_t part : candidates) {
    if (kept[part] || !may_keep(part)) continue;
    kept[part] = true;
    if (peak(kept) > budget) kept[part] = false;
  }
}

Kept BudgetModel::every(std::size_t n) const {
  Kept kept(parts_.size(), true);
  for (const PassModel& pass : passes_) {
    for (std::size_t v = 0; v < pass.visits.size(); v += n) kept[pass.visits[v].part] = false;
  }
  for (std::size_t part = 0; part < parts_.size(); ++part) kept[part] = kept[part] && may_keep(part);
  return kept;
}

std::vector<ParetoPoint> BudgetModel::pareto() const {
  constexpr int64_t steps = 64;
  std::vector<ParetoPoint> points;
  if (passes_.empty()) return points;
  Kept everything(parts_.size());
  for (std::size_t part = 0; part < parts_.size(); ++part) everything[part] = may_keep(part);
  const int64_t least = peak(Kept(parts_.size(), false)), most = std::max(least, peak(everything));
  const double total = saved(everything);
  for (int64_t step = 0; step <= steps; ++step) {
    const Kept kept = solve(least + (most - least) * step / steps);
    const double extra = 1e3 * std::max(0.0, total - saved(kept));
    if (!points.empty() && extra >= points.back().extra_ms) continue;
    const auto count = std::count(kept.begin(), kept.end(), true);
    points.push_back({peak(kept), extra, static_cast<int64_t>(parts_.size()) - count});
  }
  return points;
}

}  // namespace saturate::detail
