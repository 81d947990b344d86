// SPDX-License-Identifier: Apache-2.0
// Finds the rank that the others wait for:
//
//   st::Trainer trainer(net, optimizer, loss, st::Ddp(group), st::StragglerReport(group));
//
//   rank 3 is the slowest: 61.2 ms of its own a window, 3.1 times the others' median of 19.8 ms (41.0 ms of it wait for
//   its loader)
#pragma once

#include "saturate/distributed/process_group.hpp"
#include "saturate/distributed/waiting.hpp"
#include "saturate/trainer/events.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace saturate {

/// Each rank's time a window, without what it waited for other ranks.
struct StragglerTimes {
  int64_t window = 0;                  ///< the last of the interval
  std::vector<double> own_seconds;     ///< a window, by rank
  std::vector<double> loader_seconds;  ///< of that waiting for the loader, as of the rank's last log; NaN: none yet

  int slowest() const;
  /// Of all ranks but the slowest.
  double median_of_others() const;
  /// The slowest rank's time over the others' median.
  double ratio() const;
  std::string in_words() const;
};

struct StragglerReportOptions {
  int64_t every = 50;       ///< windows
  double warn_ratio = 1.5;  ///< rank 0 logs a warning from this ratio on
  /// Told of every interval, on every rank, some windows later.
  std::function<void(const StragglerTimes&)> notify = {};

  /// @throws ConfigError every below 1, warn_ratio not above 1.
  void validate() const;
};

/// Takes host time from window to window, less what the training thread waited for other ranks in collectives; sums of
/// `every` windows go round between the CPUs beside training, which does not wait for them. Rank 0 warns of a
/// straggler, and sums up when fit ends. Evaluations are left out.
///
/// With GPUs this finds slow loaders and slow hosts; a slow GPU holds up every host alike, and is not found.
class StragglerReport {
 public:
  /// Called by every rank. @throws ConfigError as validate.
  explicit StragglerReport(const distributed::ProcessGroup& group, StragglerReportOptions options = {});

  void on_fit_begin(const FitBegin& event);
  void on_epoch_begin(const EpochBegin& event);
  void on_step(const StepEvent& event);
  void on_log(const LogEvent& event);
  void on_evaluate(const EvaluateEvent& event);
  void on_fit_end(const FitEnd& event);

  /// The last interval that is known; the same on all ranks after fit.
  std::optional<StragglerTimes> last() const;
  /// The mean over all intervals of this fit that are known.
  std::optional<StragglerTimes> overall() const;

 private:
  struct State;
  void start_clock();
  void send(int64_t window);
  void receive(bool wait);

  std::shared_ptr<State> state_;  // stays where it is when the callback moves into a Trainer
};

}  // namespace saturate
