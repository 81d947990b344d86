// SPDX-License-Identifier: Apache-2.0
#include "saturate/checkpoint.hpp"

#include "saturate/error.hpp"

#include <c10/util/StringUtil.h>

#include <cstdio>
#include <random>

namespace saturate {
namespace {

/// No two runs have the same, whatever they were seeded with.
std::string new_token() {
  std::random_device device;
  char text[32];
  std::snprintf(text, sizeof(text), "%08x%08x", static_cast<unsigned>(device()), static_cast<unsigned>(device()));
  return text;
}

}  // namespace

struct Checkpoint::Bound {
  Source source;
  checkpoint::Folder folder;
  std::string token;                 // rank 0's
  std::vector<int64_t> checkpoints;  // that are there, ascending
};

Checkpoint::Checkpoint(CheckpointOptions options) : options_(std::move(options)) {}

void Checkpoint::validate() const {
  if (options_.folder.empty()) throw ConfigError("Checkpoint: no folder is given; give .folder");
  if (options_.every < 1) throw ConfigError(c10::str("Checkpoint: every is ", options_.every, "; give 1 or more"));
  if (options_.keep < 1) throw ConfigError(c10::str("Checkpoint: keep is ", options_.keep, "; give 1 or more"));
}

void Checkpoint::bind(Source source) {
  validate();
  const TrainerState state = source.state();
  checkpoint::on_all_ranks(source.group, "Checkpoint", [&] { source.shared(); });  // what it can say is said now
  checkpoint::Folder folder(options_.folder, source.group);
  folder.refuse_other_ranks();  // files that ranks share have the same names
  std::vector<int64_t> checkpoints = folder.complete();
  if (!checkpoints.empty() && checkpoints.back() > state.window) {
    throw StateError(c10::str("Checkpoint: ", options_.folder, " holds a checkpoint of window ", checkpoints.back(),
                              ", this run is at window ", state.window,
                              ": call resume(trainer, loader, folder) first, or give another folder"));
  }
  std::string token = source.group.gather_text(new_token())[0];
  due_ = due_after_evaluation_ = false;
  last_ = !checkpoints.empty() && checkpoints.back() == state.window ? state.window : -1;
  bound_ =
      std::make_shared<Bound>(Bound{std::move(source), std::move(folder), std::move(token), std::move(checkpoints)});
}

void Checkpoint::save() {
  if (bound_ == nullptr) throw StateError("Checkpoint: bind(trainer, loader) comes before save()");
  Bound& bound = *bound_;
  due_ = due_after_evaluation_ = false;
  const int64_t window = bound.source.state().window;
  bound.folder.save(window, c10::str(bound.token, "-", window), bound.source.shared(), bound.source.own());
  last_ = window;
  auto& there = bound.checkpoints;
  if (there.empty() || there.back() != window) there.push_back(window);
  if (there.size() > static_cast<std::size_t>(options_.keep)) there.erase(there.begin(), there.end() - options_.keep);
  bound.folder.remove_all_but(there);
}

void Checkpoint::on_step(const StepEvent& event) {
  if (event.state.window % options_.every != 0) return;
  if (bound_ == nullptr) throw StateError("Checkpoint: bind(trainer, loader) comes before training");
  // Ranks may be at different places of their data.
  due_ = bound_->source.group.any(!bound_->source.within_epoch());
  due_after_evaluation_ = !due_ && event.evaluates;
  if (!due_ && !due_after_evaluation_) save();
}

// What it has changed (ReduceLrOnPlateau, random streams) is of this window, and not done again by a run that goes on.
void Checkpoint::after_evaluation() {
  if (due_after_evaluation_) save();
}

void Checkpoint::on_epoch_end(const EpochEnd&) {
  if (due_) save();
}

void Checkpoint::on_fit_end(const FitEnd& event) {
  if (bound_ != nullptr && !event.failed && options_.at_end && event.state.window != last_) save();
  bound_ = nullptr;
}

}  // namespace saturate
