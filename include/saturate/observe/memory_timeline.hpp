// SPDX-License-Identifier: Apache-2.0
// Tensor memory along one step, sample by sample: what measure_memory() (memory_report.hpp) records, and its chart.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace saturate {

/// What tensor memory is for. Each storage counts once, for one thing at a time.
enum class MemoryKind {
  parameters,       ///< parameters and buffers of the model
  optimizer_state,  ///< moments, master weights
  gradients,        ///< of the parameters
  inputs,           ///< older than the step, and saved by autograd: the batch
  activations,      ///< saved by autograd for backward, and not let go yet
  workspace,        ///< all else that the step allocated: temporaries, outputs, what a recomputed block makes again
};
inline constexpr std::size_t memory_kinds = 6;

/// "optimizer state"
const char* to_string(MemoryKind kind);

/// Bytes of one device, by MemoryKind.
struct MemoryByKind {
  std::array<int64_t, memory_kinds> bytes{};

  int64_t& operator[](MemoryKind kind) { return bytes[static_cast<std::size_t>(kind)]; }
  int64_t operator[](MemoryKind kind) const { return bytes[static_cast<std::size_t>(kind)]; }
  int64_t total() const;
  bool operator==(const MemoryByKind&) const = default;
};

/// After one allocation or free.
struct MemorySample {
  double seconds = 0;   ///< since the step began; on a GPU when the host asked for it, not when a kernel ran
  int64_t device = 0;   ///< index into MemoryTimeline::devices
  int64_t phase = 0;    ///< index into MemoryTimeline::phases
  int64_t mark = 0;     ///< index into MemoryTimeline::marks
  MemoryByKind memory;  ///< of that device, now
  bool operator==(const MemorySample&) const = default;
};

/// Plain data: holds no tensors, copies freely.
struct MemoryTimeline {
  std::vector<std::string> devices;   ///< "cpu", "cuda:0"; first the one that the model is on
  std::vector<std::string> phases;    ///< "before", "forward", "backward", "update", or names of the caller's own
  std::vector<std::string> marks;     ///< parts of the model (marks.hpp); marks[0] is "": outside of all
  std::vector<MemorySample> samples;  ///< by time
  double seconds = 0;                 ///< of the whole step

  bool empty() const { return samples.empty(); }
  /// Highest total of a device; 0 for one that is not there.
  int64_t peak_bytes(std::size_t device = 0) const;

  /// At most about `samples` samples for each device and phase stretch: the highest one of every time slice is kept, so
  /// that peaks stay. For charts and for reports that hold many timelines.
  MemoryTimeline thinned(std::size_t samples = 300) const;

  /// Total of one device over the step, stacked by kind, its phases marked: an <svg> element that stands alone in a
  /// file and goes into a page of HTML as it is; fills the width it gets. Empty without samples of that device.
  std::string to_svg(std::size_t device = 0) const;

  /// {"devices": [...], "phases": [...], "marks": [...], "kinds": [...], "seconds": s,
  ///  "samples": [[seconds, device, phase, mark, bytes of each kind...], ...]}
  std::string to_json() const;
  /// @throws DataError not such a text: a field is missing or has another type, an index is out of range.
  static MemoryTimeline from_json(std::string_view text);

  bool operator==(const MemoryTimeline&) const = default;
};

}  // namespace saturate
