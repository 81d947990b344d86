// SPDX-License-Identifier: Apache-2.0
// Where the memory of a training step goes:
//
//   st::MemoryReport report = st::measure_memory(trainer, batch);                               // takes one step
//   st::MemoryReport report = st::measure_memory(model, optimizer, [&] { my_step(batch); });    // a loop by hand
//   report.print(std::cout);
//   report.save_snapshot("memory_snapshot.json");
//
// The step is taken as always, its numbers do not change. Its phases are told apart by what autograd does: "forward" up
// to a backward pass and between two of them, "backward" inside of one, "update" after the last. A step that is built
// otherwise says where it is: [&](st::StepPhases& phase) { phase("generator"); ... phase("discriminator"); ... }.
#pragma once

#include "saturate/marks.hpp"
#include "saturate/observe/memory_timeline.hpp"
#include "saturate/optim/optimizer.hpp"

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace saturate {
namespace detail {
class MemoryRecorder;
}

/// State of a device's caching allocator after the step, for the whole process.
struct AllocatorState {
  int64_t reserved_bytes = 0;        ///< taken from the device
  int64_t allocated_bytes = 0;       ///< in use by tensors
  int64_t inactive_split_bytes = 0;  ///< free pieces of blocks that are partly in use: fragments
  int64_t retries = 0;               ///< in the step: the device was full, and the cache emptied to go on
  int64_t out_of_memory = 0;         ///< in the step: and that did not help

  /// Reserved and not in use: what the cache holds. Much of it beside retries means fragmentation.
  int64_t unused_bytes() const { return reserved_bytes - allocated_bytes; }
  bool operator==(const AllocatorState&) const = default;
};

/// Tensor memory of one device. Bytes are what the allocator was asked for (CPU) or gave (CUDA).
struct DeviceMemory {
  std::string device;                            ///< "cpu", "cuda:0"
  MemoryByKind before;                           ///< before the step
  MemoryByKind after;                            ///< after it
  MemoryByKind peak;                             ///< each kind's own highest value; they need not fall together
  MemoryByKind at_peak;                          ///< when the total was highest: adds up to it
  int64_t allocations = 0;                       ///< in the step
  std::optional<AllocatorState> allocator = {};  ///< not for the CPU

  int64_t peak_bytes() const { return at_peak.total(); }
  bool operator==(const DeviceMemory&) const = default;
};

/// One phase of the step, on the model's device.
struct PhaseMemory {
  std::string name;
  double seconds = 0;      ///< from its first allocation or free to the next phase's, over all stretches
  int64_t peak_bytes = 0;  ///< highest total
  MemoryByKind at_end;
  bool operator==(const PhaseMemory&) const = default;
};

/// One marked part of the model (saturate::call), on the model's device. A storage belongs to the part that saved it
/// first; parameters, buffers, gradients and the batch do not count.
struct ModuleMemory {
  std::string name;             ///< "" for what no mark covers
  int64_t activations = 0;      ///< most bytes that autograd held at once for this part and the parts in it
  int64_t own_activations = 0;  ///< without the parts in it
  int64_t forward_peak = 0;     ///< highest total during a forward of it, above what there was when it began
  bool operator==(const ModuleMemory&) const = default;
};

struct MemoryReport {
  std::vector<DeviceMemory> devices;  ///< first the model's
  std::vector<PhaseMemory> phases;    ///< in order of appearance
  std::vector<ModuleMemory> modules;  ///< in order of execution; those that were run
  int64_t slot_bytes = 0;             ///< host memory of a loader's batch slots, beside all totals
  int64_t resident_bytes = 0;         ///< of the process after the step
  int64_t resident_peak_bytes = 0;    ///< of the process so far
  /// Whether activations could be told from workspace: not where Python's autograd engine runs.
  bool saved_tensors_known = false;
  /// Whether the optimizer names its state; else that is workspace when the step made it, and not there when older.
  bool optimizer_state_known = false;
  MemoryTimeline timeline;

  /// The model's device.
  const DeviceMemory& memory() const { return devices.front(); }
  /// nullptr when the part was not run.
  const ModuleMemory* module(std::string_view name) const;
  /// nullptr when there was none of that name.
  const PhaseMemory* phase(std::string_view name) const;

  /// Plain aligned tables.
  void print(std::ostream& out) const;
  /// The step of the model's device as a chart (MemoryTimeline::to_svg).
  std::string to_svg() const { return timeline.to_svg(); }

  /// Every member by its name, kinds as {"parameters": bytes, ...}, beside "format": "saturate.memory" and
  /// "version": 1.
  std::string to_json() const;
  /// @throws DataError not such a text.
  static MemoryReport from_json(std::string_view text);
  /// to_json() into a file that is there as a whole or not at all. @throws Error it cannot be written.
  void save_snapshot(const std::string& path) const;
  /// @throws DataError it cannot be read, or is none.
  static MemoryReport load_snapshot(const std::string& path);

  bool operator==(const MemoryReport&) const = default;
};

struct MemoryOptions {
  int64_t slot_bytes = 0;  ///< see loader_slot_bytes()
};

/// Names the phases of a step by hand.
class StepPhases {
 public:
  explicit StepPhases(detail::MemoryRecorder& recorder) : recorder_(recorder) {}
  /// From here on the step is in this phase.
  void operator()(std::string_view name);

 private:
  detail::MemoryRecorder& recorder_;
};

/// Host memory of a PrefetchLoader's batch slots so far, in bytes. Pinned ones (a CUDA device) are not in it.
template <class Loader>
int64_t loader_slot_bytes(const Loader& loader) {
  int64_t row = 0;
  for (const auto& field : loader.source().layout()) row += static_cast<int64_t>(field.bytes());
  return loader.stats().slot_allocations * loader.options().batch_size * row;
}

namespace detail {
using StateTensors = std::optional<std::vector<at::Tensor>>;
/// nullopt: the optimizer does not tell.
StateTensors state_tensors(const optim::Optimizer& optimizer);
StateTensors state_tensors(const torch::optim::Optimizer& optimizer);
MemoryReport measure_memory(const torch::nn::Module& model, const std::function<StateTensors()>& state,
                            const std::function<void(StepPhases&)>& step, const MemoryOptions& options);
}  // namespace detail

/// Runs `step` once and says what its memory was for. Sees this thread, its backward passes and what it gives to
/// at::launch, as a MemoryMeter does; the first step of an optimizer makes its state, so take the second.
/// @param model a module holder, a shared_ptr to a module or a module; its parts' names are those of its marks.
/// @param optimizer of saturate::optim or torch::optim.
/// @param step callable without arguments, or with a StepPhases&. Its exceptions come through; nothing stays behind.
/// @throws StateError inside a backward pass, a recomputed block or another measurement, or while LibTorch's profiler
/// runs on this thread. In backward: a tensor that forward saved was changed in place (LibTorch's own check, which
/// saved-tensor hooks switch off).
template <class Model, class Optimizer, class Step>
requires(std::invocable<Step&> || std::invocable<Step&, StepPhases&>) MemoryReport
    measure_memory(Model&& model, const Optimizer& optimizer, Step&& step, const MemoryOptions& options = {}) {
  return detail::measure_memory(
      marks::detail::module_of(model), [&] { return detail::state_tensors(optimizer); },
      [&](StepPhases& phases) {
        if constexpr (std::invocable<Step&, StepPhases&>) {
          step(phases);
        } else {
          step();
        }
      },
      options);
}

/// The same for one step of a Trainer. @param window a batch, or a contiguous range of micro-batches.
template <class Trainer, class Window>
requires requires(Trainer& trainer, const Window& window) {
  trainer.step(window);
  trainer.optimizer();
}
MemoryReport measure_memory(Trainer& trainer, const Window& window, const MemoryOptions& options = {}) {
  return measure_memory(
      trainer.model(), trainer.optimizer(), [&] { trainer.step(window); }, options);
}

}  // namespace saturate
