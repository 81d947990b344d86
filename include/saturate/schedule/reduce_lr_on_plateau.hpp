// SPDX-License-Identifier: Apache-2.0
// Lowers the learning rate when a metric no longer gets better:
//
//   Trainer trainer(net, optimizer, loss, st::ReduceLrOnPlateau({.metric = "accuracy", .mode = st::PlateauMode::max}));
//   trainer.fit(loader, validation);                        // every evaluation is observed
//
//   st::ReduceLrOnPlateau plateau({.patience = 2});         // in a loop of your own
//   plateau.observe(validation_loss);
//   optimizer.step({.lr_factor = plateau.factor(step)});
#pragma once

#include "saturate/policy.hpp"

#include <cstdint>
#include <limits>
#include <string>

namespace saturate {

struct EvaluateEvent;

enum class PlateauMode { min, max };       ///< which way the metric gets better
enum class PlateauThreshold { rel, abs };  ///< what `threshold` is a share of the best value, or a difference

struct PlateauOptions {
  std::string metric = "loss";  ///< one of those that the evaluation measures
  PlateauMode mode = PlateauMode::min;
  double reduce_by = 0.1;  ///< what the rate is multiplied by; Python's `factor`
  int64_t patience = 10;   ///< observations in a row without a better value that are borne; one more reduces the rate
  double threshold = 1e-4;
  PlateauThreshold threshold_mode = PlateauThreshold::rel;
  int64_t cooldown = 0;   ///< observations after a reduction in which nothing is counted
  double min_factor = 0;  ///< the factor's floor; Python's min_lr / lr
  double eps = 1e-8;      ///< a reduction of the factor by less than this is left out; Python's eps / lr
};

/// Where a plateau schedule stands: all that it remembers.
struct PlateauState {
  double factor = 1;
  double best = std::numeric_limits<double>::quiet_NaN();  ///< NaN: nothing was better than nothing yet
  int64_t bad = 0;                                         ///< observations in a row that were no better
  int64_t cooldown = 0;                                    ///< observations left in which nothing is counted
  int64_t observations = 0;

  friend bool operator==(const PlateauState&, const PlateauState&) = default;
};

/// Python's ReduceLROnPlateau. The one schedule that is no function of the step: factor(step) is the present factor
/// whatever the step, and revision() grows whenever it changes. A NaN is never better.
class ReduceLrOnPlateau {
 public:
  using axis = saturate::axis::schedule;

  /// @throws ConfigError an empty metric, reduce_by not in (0, 1), a negative patience, threshold, cooldown, min_factor
  /// or eps, or a relative threshold of 1 or more.
  explicit ReduceLrOnPlateau(PlateauOptions options = {});

  double factor(int64_t) const { return state_.factor; }
  /// Takes in one value of the metric.
  void observe(double metric);
  /// Observes the metric of an evaluation. @throws ConfigError it was not measured; lists what was.
  void on_evaluate(const EvaluateEvent& event);

  /// Grows with every change of the factor: whoever keeps factors of coming steps drops them then.
  int64_t revision() const { return revision_; }
  const PlateauState& state() const { return state_; }
  /// @throws StateError a factor that is not in [0, 1], or a negative count; nothing has been changed then.
  void load_state(const PlateauState& state);
  const PlateauOptions& options() const { return options_; }

 private:
  bool is_better(double metric) const;
  void reduce();

  PlateauOptions options_;
  PlateauState state_;
  int64_t revision_ = 0;
};
static_assert(SchedulePolicy<ReduceLrOnPlateau>);

}  // namespace saturate
