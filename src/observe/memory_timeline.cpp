// SPDX-License-Identifier: Apache-2.0
#include "saturate/observe/memory_timeline.hpp"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace saturate {

const char* to_string(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::parameters: return "parameters";
    case MemoryKind::optimizer_state: return "optimizer state";
    case MemoryKind::gradients: return "gradients";
    case MemoryKind::inputs: return "inputs";
    case MemoryKind::activations: return "activations";
    case MemoryKind::workspace: return "workspace";
  }
  return "";
}

int64_t MemoryByKind::total() const { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }

int64_t MemoryTimeline::peak_bytes(std::size_t device) const {
  int64_t peak = 0;
  for (const MemorySample& sample : samples) {
    if (sample.device == static_cast<int64_t>(device)) peak = std::max(peak, sample.memory.total());
  }
  return peak;
}

MemoryTimeline MemoryTimeline::thinned(std::size_t wanted) const {
  MemoryTimeline result{devices, phases, marks, {}, seconds};
  const double slice = seconds > 0 && wanted > 0 ? seconds / static_cast<double>(wanted) : 1;
  // By device: the highest sample of the slice and phase that runs; the last one of all is kept besides.
  std::vector<MemorySample> highest, last;
  const auto place = [&](const MemorySample& s) {
    return std::tuple(static_cast<int64_t>(s.seconds / slice), s.phase);
  };
  const auto of_device = [](std::vector<MemorySample>& all, int64_t device) {
    return std::find_if(all.begin(), all.end(), [&](const MemorySample& s) { return s.device == device; });
  };
  for (const MemorySample& sample : samples) {
    const auto open = of_device(highest, sample.device);
    if (open == highest.end()) {
      highest.push_back(sample);
      last.push_back(sample);
      continue;
    }
    *of_device(last, sample.device) = sample;
    const bool same = place(*open) == place(sample);
    if (same && sample.memory.total() <= open->memory.total()) continue;
    if (!same) result.samples.push_back(*open);
    *open = sample;
  }
  for (const MemorySample& sample : highest) {
    result.samples.push_back(sample);
    const MemorySample& end = *of_device(last, sample.device);
    if (!(end == sample)) result.samples.push_back(end);
  }
  std::stable_sort(result.samples.begin(), result.samples.end(),
                   [](const MemorySample& a, const MemorySample& b) { return a.seconds < b.seconds; });
  return result;
}

}  // namespace saturate
