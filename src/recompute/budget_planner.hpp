// SPDX-License-Identifier: Apache-2.0
// Finds which parts to keep within a budget of bytes, from window to window: everything is recomputed at first and
// measured; then the plan of the model runs and is measured; then single parts are tried that might fit besides.
#pragma once

#include "budget_model.hpp"
#include "window_record.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace saturate::detail {

class BudgetPlanner {
 public:
  explicit BudgetPlanner(int64_t budget) : budget_(budget) {}

  /// Whether the coming window keeps the part's activations.
  bool keeps(std::size_t part) const { return part < kept_.size() && kept_[part]; }
  /// Whether it is to be recorded event by event; if not, its peak will do.
  bool records() const { return phase_ != Phase::settled; }
  bool times_parts() const { return phase_ == Phase::measuring; }
  bool settled() const { return phase_ == Phase::settled; }

  /// A recorded window is over. @return whether the plan is settled now.
  /// @throws ConfigError it is the first one, and it does not fit although everything is recomputed.
  bool add(const WindowRecord& record);
  /// A window of the settled plan is over.
  void watch(int64_t peak);
  /// A window of the settled plan ran a part that no measured one did: it takes part from now on.
  void meet_new_part();
  bool knows(std::size_t part) const { return model_.runs(part); }
  /// Holds what is, without a plan: parts cannot tell what they would keep.
  void hold_everything_recomputed() { can_plan_ = false; }

  const BudgetModel& model() const { return model_; }
  int64_t budget() const { return budget_; }
  int64_t predicted_peak() const { return model_.peak(kept_); }
  int64_t measured_peak() const { return measured_peak_; }

 private:
  enum class Phase { measuring, trying, settled };
  enum class Trial { solved, improvement };

  void measured(const WindowRecord& record);
  void tried(const WindowRecord& record);
  bool fits_everything_recomputed(int64_t peak);
  void start_trying();
  void try_next();
  std::optional<Kept> next_solved();
  std::optional<Kept> next_improvement() const;
  std::optional<Kept> every_nth() const;
  std::optional<Kept> one_more() const;
  bool is_known_over(const Kept& kept) const;
  void settle();
  void start_again(int64_t windows, BudgetModel model);

  int64_t budget_;
  bool can_plan_ = true;
  Phase phase_ = Phase::measuring;
  Kept kept_;
  BudgetModel model_;
  // measuring
  int64_t measured_windows_ = 0;  // of the whole training
  int64_t to_measure_ = 3;
  // trying
  Trial trial_ = Trial::solved;
  std::size_t trials_left_ = 0;
  int64_t reserve_ = 0;  // by how much a solved plan was over what the model predicts
  Kept best_;            // of what was measured within the budget
  WindowRecord best_record_;
  std::vector<Kept> over_;  // what was not
  // settled
  int64_t measured_peak_ = 0;
  int64_t low_windows_ = 0;
  int64_t patience_ = 1;  // windows to measure after a settled plan was over the budget; doubles each time
  bool warned_anew_ = false, warned_over_ = false;
};

/// A peak that a window with one more part kept certainly has, from one that recomputed it: from the part's end to its
/// second forward, its bytes come on top.
int64_t least_peak_with(const WindowRecord& record, std::size_t part);

}  // namespace saturate::detail
