// SPDX-License-Identifier: Apache-2.0
// Takes down what happens to tensor memory during a step. What each block was for is known only later (a gradient when
// it is accumulated, the optimizer's state at the end), so blocks and events are kept, and judged afterwards
// (memory_sweep.hpp).
#pragma once

#include "../torch_seam/saved_tensors.hpp"
#include "saturate/marks.hpp"
#include "saturate/observe/memory_meter.hpp"
#include "saturate/observe/memory_timeline.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace saturate::detail {

/// One block of memory, from its allocation to its free.
struct MemoryBlock {
  std::size_t device;  // index into MemoryRecord::devices
  int64_t bytes;
  bool older;                      // than the step
  std::optional<MemoryKind> role;  // of its whole life; none: workspace, and activation while it is saved
};

struct MemoryStep {
  enum class What { allocate, free, save, let_go, enter, leave };
  What what;
  double seconds;
  std::size_t block;  // of enter and leave: none
  std::size_t mark;
  std::optional<std::size_t> phase;  // named by the caller
  bool backward;
};

struct MemoryRecord {
  std::vector<c10::Device> devices;
  std::vector<std::string> marks = {""};
  std::vector<std::string> phases = {"before", "forward", "backward", "update"};
  std::vector<MemoryBlock> blocks;
  std::vector<MemoryStep> steps;
  double seconds = 0;
};

/// Autograd's hooks share it, and may outlive the step: then it records nothing more.
class MemoryRecorder final : public torch_seam::SavedTensorPacker,
                             public marks::Observer,
                             public std::enable_shared_from_this<MemoryRecorder> {
 public:
  explicit MemoryRecorder(c10::Device model) : record_{{model}} {}

  /// What a storage is for. One that is older than the step counts from its beginning. A use that is known stays.
  void claim(const at::Tensor& tensor, MemoryKind role);
  /// Not for older storages.
  void claim_new(const at::Tensor& tensor, MemoryKind role);
  /// Begins and ends recording. The meter tells event().
  void start(MemoryMeter& meter);
  void stop();
  void event(const MemoryEvent& event);
  void set_phase(std::string_view name);
  /// To be asked for when recording has stopped.
  const MemoryRecord& record() const { return record_; }

  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() override;
  void enter(const std::vector<std::string>& names, const torch::nn::Module& module) override;
  void leave(const std::vector<std::string>& names, const torch::nn::Module& module) noexcept override;

 private:
  class Hooks;
  using Clock = std::chrono::steady_clock;

  std::optional<std::size_t> save(const at::Tensor& tensor);
  void let_go(std::size_t block);
  void know(const at::Tensor& tensor, MemoryKind role_if_older);
  void add(MemoryStep::What what, std::size_t block, std::size_t mark);
  std::size_t device_of(c10::Device device);
  std::size_t mark_of(std::string_view name);

  std::mutex mutex_;
  MemoryRecord record_;
  std::unordered_map<const void*, std::size_t> alive_;  // block by address
  std::map<std::string, std::size_t, std::less<>> marks_ = {{"", 0}};
  std::optional<std::size_t> phase_;
  MemoryMeter* meter_ = nullptr;  // while recording
  std::atomic<bool> recording_ = false;
  Clock::time_point begin_;
};

}  // namespace saturate::detail
