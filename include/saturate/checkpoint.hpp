// SPDX-License-Identifier: Apache-2.0
// Files that training resumes from, after a kill at any instant:
//
//   st::Trainer trainer(net, optimizer, loss, st::Ddp(group), st::Checkpoint({.folder = "run", .every = 500}));
//   st::resume(trainer, loader, "run");                       // where the last run got to; a new run otherwise
//   const int64_t left = 3 - trainer.state().epoch;
//   if (left > 0) trainer.fit(loader, {.epochs = left});
//
// Saved are: parameters, buffers, optimizer, GradScaler, ReduceLrOnPlateau, Ema and Swa, residuals of hooks, random
// streams of every rank, the place in the data, and the Trainer's counters. A run that goes on from a checkpoint equals
// one that was not stopped, bit for bit (on the CPU, one thread a rank; docs/distributed.md says what with more than
// two ranks).
#pragma once

#include "saturate/checkpoint/folder.hpp"
#include "saturate/checkpoint/run_values.hpp"
#include "saturate/trainer/events.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace saturate {

struct CheckpointOptions {
  std::string folder;    ///< made where it is not there
  int64_t every = 1000;  ///< windows between checkpoints
  int64_t keep = 2;      ///< the last ones; older ones are removed once a new one is on every rank's disk
  bool at_end = true;    ///< also when fit ends, a stop included
};

/// A callback. Ranks save at the same windows; with a loader that cannot say where it is (a vector of batches) only at
/// ends of epochs. Saving waits for the GPU and the disk.
class Checkpoint {
 public:
  explicit Checkpoint(CheckpointOptions options);

  /// @throws ConfigError no folder, or every or keep below 1.
  void validate() const;

  /// What is saved from now on; fit calls it when it begins, every rank together. In a loop of your own: once, and then
  /// save() where you like. Trainer and loader stay where they are.
  /// @throws StateError, on every rank: the optimizer's state cannot be saved (torch::optim); the folder holds newer
  /// checkpoints than this run is (resume() was left out, or it is another run's), or any of another number of ranks.
  template <class Trainer, class Loader>
  void bind(Trainer& trainer, Loader& loader) {
    const checkpoint::detail::Run<Trainer, Loader> run(trainer, loader);
    bind(Source{.group = run.group(),
                .state = [run] { return run.state(); },
                .within_epoch = [run] { return run.within_epoch(); },
                .shared = [run] { return run.shared(); },
                .own = [run] { return run.own(); }});
  }
  /// Now, by every rank. @throws Error, on every rank: one could not write. StateError: before bind().
  void save();

  void on_step(const StepEvent& event);
  /// When everybody has been told of an evaluation, whatever stands where in the Trainer's list.
  void after_evaluation();
  void on_epoch_end(const EpochEnd& event);
  void on_fit_end(const FitEnd& event);

  const CheckpointOptions& options() const { return options_; }
  /// Window of the last checkpoint of this object; -1: none yet.
  int64_t last() const { return last_; }

 private:
  struct Source {
    distributed::ProcessGroup group;
    std::function<TrainerState()> state;
    std::function<bool()> within_epoch;
    std::function<checkpoint::Values()> shared, own;
  };
  struct Bound;
  void bind(Source source);

  CheckpointOptions options_;
  std::shared_ptr<Bound> bound_;
  int64_t last_ = -1;
  bool due_ = false;  // at the epoch's end
  bool due_after_evaluation_ = false;
};

/// Loads the newest checkpoint that every rank has whole, called by every rank before fit. Give it a Trainer, model and
/// loader as the saved run began with.
/// @return where the run stands now; nothing: there is no checkpoint.
/// @throws StateError, ConfigError or DataError, on every rank at once: what is there does not fit on one of them, or
/// is torn. Make a new Trainer before trying anything else.
template <class Model, class Loss, class... Policies, class Loader>
std::optional<TrainerState> resume(Trainer<Model, Loss, Policies...>& trainer, Loader& loader,
                                   const std::string& folder) {
  const checkpoint::detail::Run<Trainer<Model, Loss, Policies...>, Loader> run(trainer, loader);
  const auto saved = checkpoint::Folder(folder, run.group()).newest();
  if (!saved) return std::nullopt;
  run.load(saved->shared, saved->own);
  return trainer.state();
}

}  // namespace saturate
