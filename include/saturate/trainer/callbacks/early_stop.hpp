// SPDX-License-Identifier: Apache-2.0
// Ends a run when an evaluation's metric no longer gets better:
//
//   EarlyStop stop({.metric = "accuracy", .patience = 2, .better = EarlyStop::Better::higher});
//   Trainer trainer(net, optimizer, loss, std::ref(stop));
//   trainer.fit(...);
//   stop.best(), stop.best_step()
#pragma once

#include "saturate/trainer/events.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace saturate {

namespace detail {
enum class Better { lower, higher };
}

struct EarlyStopOptions {
  std::string metric = "loss";  ///< one of those that the evaluation measures
  int64_t patience = 3;         ///< evaluations in a row without a better value that end the run
  double min_delta = 0;         ///< a value must be better than the best by more than this
  detail::Better better = detail::Better::lower;
};

/// Sets `state.stop` at the `patience`-th evaluation in a row that is no better; fit ends after that window. NaN is
/// never better. Starts anew with each fit.
class EarlyStop {
 public:
  using Better = detail::Better;

  /// @throws ConfigError for an empty metric, a patience below 1, a min_delta that is negative or not finite.
  explicit EarlyStop(EarlyStopOptions options = {});

  void on_fit_begin(const FitBegin& event);
  /// @throws ConfigError when the evaluation does not measure the metric; lists those that it does.
  void on_evaluate(const EvaluateEvent& event);

  /// The best value, its step, and whether this object ended the run. Empty before the first value that is not NaN.
  std::optional<double> best() const { return best_; }
  std::optional<int64_t> best_step() const { return best_step_; }
  bool stopped() const { return stopped_; }

 private:
  bool is_better(double value) const;

  EarlyStopOptions options_;
  std::optional<double> best_;
  std::optional<int64_t> best_step_;
  int64_t waited_ = 0;
  bool stopped_ = false;
};

}  // namespace saturate
