// SPDX-License-Identifier: Apache-2.0
// What the audit measures: a Workload that can be built with any set of tactics, and the tactics to try on it. The
// audit knows no model, no optimizer and no Trainer; a Runner is all it sees of one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace saturate {
struct MemoryReport;
}

namespace saturate::audit {

/// What a Runner did in one call of run(). The audit reads no clock for it: the runner reports its own seconds.
struct RoundResult {
  double seconds = 0;                ///< wall time of the steps, until their work had finished on the device
  int64_t steps = 0;                 ///< optimizer steps taken
  int64_t samples = 0;               ///< training samples consumed
  double loss_sum = 0;               ///< sum of the per-sample losses
  double loss_count = 0;             ///< what they were summed over: loss_sum / loss_count is the mean loss
  double data_wait_seconds = 0;      ///< the part of `seconds` spent waiting for the next batch
  std::vector<double> step_seconds;  ///< wall time of each step; may be empty
  int64_t peak_bytes = 0;            ///< highest memory use seen, in bytes; 0: unknown

  double samples_per_second() const { return static_cast<double>(samples) / seconds; }
  double mean_loss() const { return loss_sum / loss_count; }
};

/// The live training state of one arm: model, optimizer, loader. Each call of run() trains on from where the last one
/// stopped, through as many epochs as it takes. A runner that works ahead in the background (prefetching) stays
/// bounded: what it does while the other arm runs is settled in the untimed steps before each round.
class Runner {
 public:
  virtual ~Runner() = default;
  /// Takes `steps` optimizer steps. An exception rejects the tactic, and its message becomes the reason.
  virtual RoundResult run(int64_t steps) = 0;
};

/// The tactics that are switched on for one arm, in the order they were added.
class TacticSet {
 public:
  /// Adds a tactic. One on the same axis (another thread count) or of the same id is replaced.
  void add(std::string id, std::string value = {}, std::string axis = {});
  /// Whether a tactic of this id or on this axis is on.
  bool has(std::string_view id_or_axis) const;
  /// The value of the tactic of this id or on this axis ("4" for four threads). Nothing when it is off.
  std::optional<std::string> value(std::string_view id_or_axis) const;
  bool empty() const { return entries_.empty(); }
  std::vector<std::string> ids() const;
  /// "bf16 + threads-1"; "baseline" when empty.
  std::string to_string() const;

 private:
  struct Entry {
    std::string id, value, axis;
  };
  const Entry* find(std::string_view id_or_axis) const;
  std::vector<Entry> entries_;
};

/// Makes the arm for a set of tactics: an empty set is the baseline. Called afresh for each comparison; every call
/// starts from the same seed, so that both arms see the same weights and the same samples in the same order.
using MakeRunner = std::function<std::unique_ptr<Runner>(const TacticSet& tactics)>;

/// How fast the loader delivers when nothing trains.
struct LoaderCeiling {
  double samples_per_second = 0;
  int64_t samples = 0;     ///< over how many samples it was measured
  std::string cause = {};  ///< what stops it there, in words
};

struct Tactic;

/// What is to be sped up. Only `name` and `make` are required.
struct Workload {
  std::string name;
  std::string description;
  MakeRunner make;
  /// Measures the loader alone.
  std::function<LoaderCeiling()> loader_ceiling = {};
  /// The baseline at another batch size, for the curve over `batch_sizes`.
  std::function<std::unique_ptr<Runner>(int64_t batch_size)> make_with_batch_size = {};
  std::vector<int64_t> batch_sizes = {};
  /// What to do with the learning rate at another batch size, in words.
  std::function<std::string(int64_t batch_size)> lr_advice = {};
  int64_t batch_size = 0;  ///< the workload's own batch size; 0: not told
  /// Ways to need less memory at the price of time, for the curve of one against the other: made like tactics, never
  /// judged as such. Called once; none: the model marks no parts that could be recomputed.
  std::function<std::vector<Tactic>()> memory_tactics = {};
  /// Where the memory of one step of the baseline goes (observe/memory_report.hpp). Called once, outside of everything
  /// that is timed.
  std::function<MemoryReport()> step_memory = {};
};

/// One thing to try.
struct Tactic {
  std::string id;            ///< short and unique: "bf16"
  std::string title;         ///< "BF16 autocast"
  std::string how_to_apply;  ///< code or command that switches it on: "st::Bf16{}"
  std::string what;          ///< one sentence for a reader who has never heard of it
  /// The tactic computes the same numbers but for rounding: its loss has to agree tightly with the baseline's.
  bool same_math = true;
  std::string value = {};  ///< TacticSet::value
  std::string axis = {};   ///< of the tactics on one axis (thread counts), only the best joins the others
  /// How far the mean loss may be off, relative; without it AuditOptions decides by same_math.
  std::optional<double> loss_tolerance = {};
  /// Process-wide switches (thread count, kept pages): called before and after the candidate is made, warmed up and run
  /// in each round, so that the baseline arm between its rounds runs without them. leave() must not throw.
  std::function<void()> enter = {};
  std::function<void()> leave = {};
};

}  // namespace saturate::audit
