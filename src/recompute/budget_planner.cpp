// SPDX-License-Identifier: Apache-2.0
#include "budget_planner.hpp"

#include "bytes_text.hpp"
#include "saturate/error.hpp"
#include "saturate/log.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace saturate::detail {
namespace {

constexpr int64_t most_patience = 64;
// Memory of a settled plan counts as much less when it is for that many windows below that share of its peak.
constexpr int64_t low_windows = 10;
constexpr double low_share = 0.75;

void warn_once(bool& warned, const std::string& what) {
  if (!std::exchange(warned, true)) log::warn("Recompute::budget: " + what);
}

}  // namespace

int64_t least_peak_with(const WindowRecord& record, std::size_t part) {
  using Kind = MemoryEvent::Kind;
  int64_t peak = record.peak, held = 0;
  std::vector<bool> holds(record.visits.size(), false);
  for (const MemoryEvent& event : record.events) {
    peak = std::max(peak, event.peak + held);
    if (event.kind == Kind::end || record.visits[event.visit].part != part) continue;
    if (event.kind == Kind::leave) holds[event.visit] = true;
    if (event.kind == Kind::replay) holds[event.visit] = false;
    held = 0;
    for (std::size_t i = 0; i < holds.size(); ++i) held += holds[i] ? record.visits[i].least_bytes : 0;
  }
  return peak;
}

bool BudgetPlanner::add(const WindowRecord& record) {
  phase_ == Phase::measuring ? measured(record) : tried(record);
  return settled();
}

// Measuring ----------------------------------------------------------------------------------------------------------

void BudgetPlanner::measured(const WindowRecord& record) {
  if (!fits_everything_recomputed(record.peak)) {
    model_.add(record);
    return;
  }
  // The first window warms up: it says whether the rest can fit, and its memory may hold what is made only once.
  if (measured_windows_++ == 1) model_.forget_memory();
  model_.add(record);
  best_record_ = record;
  if (--to_measure_ == 0) start_trying();
}

bool BudgetPlanner::fits_everything_recomputed(int64_t peak) {
  if (peak <= budget_) return true;
  const std::string needs = bytes_text(peak) + " (" + std::to_string(peak) +
                            " bytes) with every marked part recomputed, as Recompute::all() does, more than the "
                            "budget of " +
                            bytes_text(budget_) + " (" + std::to_string(budget_) + " bytes)";
  if (measured_windows_ == 0) {
    throw ConfigError("Recompute::budget: forward and backward of a window need " + needs +
                      ": take a smaller micro-batch, mark more of the model's parts or smaller ones (saturate::call), "
                      "or give at least as much");
  }
  warn_once(warned_over_, "windows have grown: they need " + needs + "; everything stays recomputed");
  phase_ = Phase::settled;
  measured_peak_ = peak;
  return false;
}

// Trying -------------------------------------------------------------------------------------------------------------

void BudgetPlanner::start_trying() {
  best_ = Kept(model_.parts(), false);
  kept_ = best_;
  if (!can_plan_) return settle();
  phase_ = Phase::trying;
  trial_ = Trial::solved;
  trials_left_ = 2 * model_.parts() + 16;
  try_next();
}

void BudgetPlanner::tried(const WindowRecord& record) {
  if (record.peak <= budget_) {
    best_ = kept_;
    best_record_ = record;
    trial_ = Trial::improvement;
  } else {
    over_.push_back(kept_);
    if (trial_ == Trial::solved) reserve_ = std::max(reserve_, record.peak - model_.peak(kept_));
  }
  try_next();
}

void BudgetPlanner::try_next() {
  std::optional<Kept> next;
  if (trials_left_ > 0 && trial_ == Trial::solved) next = next_solved();
  if (!next) {
    trial_ = Trial::improvement;
    if (trials_left_ > 0) next = next_improvement();
  }
  if (!next) return settle();
  --trials_left_;
  kept_ = std::move(*next);
}

std::optional<Kept> BudgetPlanner::next_solved() {
  Kept kept = model_.solve(budget_ - reserve_);
  if (contains(best_, kept) || is_known_over(kept)) return std::nullopt;
  return kept;
}

std::optional<Kept> BudgetPlanner::next_improvement() const {
  auto next = every_nth();
  return next ? next : one_more();
}

// The most time that an every(n) would save which may fit as far as is certain; more than the best one's.
std::optional<Kept> BudgetPlanner::every_nth() const {
  std::optional<Kept> fastest;
  double most = model_.saved(best_) * (1 + 1e-9);
  for (std::size_t n = 2; n <= model_.parts(); ++n) {
    Kept kept = model_.every(n);
    if (model_.saved(kept) <= most || model_.least_peak(kept) > budget_ || is_known_over(kept)) continue;
    most = model_.saved(kept);
    fastest = std::move(kept);
  }
  return fastest;
}

std::optional<Kept> BudgetPlanner::one_more() const {
  std::optional<std::size_t> slowest;
  const auto with = [&](std::size_t part) {
    Kept kept = best_;
    kept[part] = true;
    return kept;
  };
  for (std::size_t part = 0; part < model_.parts(); ++part) {
    if (best_[part] || !model_.may_keep(part) || (slowest && model_.seconds(part) <= model_.seconds(*slowest)))
      continue;
    if (least_peak_with(best_record_, part) > budget_ || is_known_over(with(part))) continue;
    slowest = part;
  }
  return slowest ? std::optional<Kept>(with(*slowest)) : std::nullopt;
}

bool BudgetPlanner::is_known_over(const Kept& kept) const {
  return std::any_of(over_.begin(), over_.end(), [&](const Kept& over) { return contains(kept, over); });
}

// Settled ------------------------------------------------------------------------------------------------------------

void BudgetPlanner::settle() {
  kept_ = best_;
  measured_peak_ = best_record_.peak;
  low_windows_ = 0;
  phase_ = Phase::settled;
}

void BudgetPlanner::watch(int64_t peak) {
  const bool keeps_some = std::find(kept_.begin(), kept_.end(), true) != kept_.end();
  const bool keeps_all = !kept_.empty() && std::find(kept_.begin(), kept_.end(), false) == kept_.end();
  if (peak > budget_ && keeps_some) {
    warn_once(warned_anew_, "a window held " + bytes_text(peak) + ", more than the budget of " + bytes_text(budget_) +
                                "; windows have grown, and the plan is made anew");
    patience_ = std::min(2 * patience_, most_patience);
    return start_again(patience_, BudgetModel());
  }
  const bool low = !keeps_all && static_cast<double>(peak) < low_share * static_cast<double>(measured_peak_);
  low_windows_ = low ? low_windows_ + 1 : 0;
  if (low_windows_ == low_windows) {
    warn_once(warned_anew_, "windows have become much smaller, and the plan is made anew");
    return start_again(2, BudgetModel());
  }
  if (!low) measured_peak_ = std::max(measured_peak_, peak);
}

void BudgetPlanner::meet_new_part() {
  if (can_plan_) start_again(1, std::move(model_));
}

void BudgetPlanner::start_again(int64_t windows, BudgetModel model) {
  model_ = std::move(model);
  kept_.clear();
  over_.clear();
  reserve_ = 0;
  to_measure_ = windows;
  low_windows_ = 0;
  phase_ = Phase::measuring;
}

}  // namespace saturate::detail
