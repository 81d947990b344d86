// SPDX-License-Identifier: Apache-2.0
#include "memory_recorder.hpp"

#include "../recompute/captured_state.hpp"
#include "saturate/error.hpp"

#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

namespace saturate::detail {
namespace {

// Null without one: undefined, sparse, empty.
const void* address_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.storage().nbytes() == 0) return nullptr;
  return tensor.storage().data_ptr().get();
}

}  // namespace

/// Keeps the tensor itself, as autograd would have.
class MemoryRecorder::Hooks final : public torch::autograd::SavedVariableHooks {
 public:
  explicit Hooks(std::shared_ptr<MemoryRecorder> recorder) : recorder_(std::move(recorder)) {}
  // The tensor goes first: where nobody else holds it, its block is never seen as workspace.
  ~Hooks() override {
    kept_ = KeptTensor();
    if (block_) recorder_->let_go(*block_);
  }
  void call_pack_hook(const at::Tensor& tensor) override {
    kept_ = KeptTensor(tensor);
    block_ = recorder_->save(tensor);
  }
  at::Tensor call_unpack_hook() override {
    if (!kept_.changed()) return kept_.values();
    throw StateError(c10::str("measure_memory: a tensor that forward saved for backward was changed in place (",
                              kept_.story(), "): the gradient would be wrong; change a copy"));
  }

 private:
  std::shared_ptr<MemoryRecorder> recorder_;
  KeptTensor kept_;
  std::optional<std::size_t> block_;
};

std::unique_ptr<torch::autograd::SavedVariableHooks> MemoryRecorder::hooks() {
  return std::make_unique<Hooks>(shared_from_this());
}

// The meter does not know of older blocks either, and calls event() under a lock of its own: so it is told outside of
// ours.
void MemoryRecorder::know(const at::Tensor& tensor, MemoryKind role_if_older) {
  const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
  MemoryMeter* meter = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!alive_.try_emplace(address_of(tensor), record_.blocks.size()).second) return;
    record_.blocks.push_back({device_of(tensor.device()), bytes, /*older=*/true, role_if_older});
    meter = meter_;
  }
  if (meter != nullptr) meter->adopt(address_of(tensor), bytes, tensor.device());
}

void MemoryRecorder::claim(const at::Tensor& tensor, MemoryKind role) {
  if (address_of(tensor) == nullptr) return;
  know(tensor, role);
  claim_new(tensor, role);
}

void MemoryRecorder::claim_new(const at::Tensor& tensor, MemoryKind role) {
  const std::lock_guard lock(mutex_);
  const auto found = alive_.find(address_of(tensor));  // null is never in it
  if (found != alive_.end() && !record_.blocks[found->second].role) record_.blocks[found->second].role = role;
}

void MemoryRecorder::start(MemoryMeter& meter) {
  std::vector<std::pair<const void*, std::size_t>> older;
  {
    const std::lock_guard lock(mutex_);
    meter_ = &meter;
    recording_ = true;
    begin_ = Clock::now();
    older.assign(alive_.begin(), alive_.end());
  }
  for (const auto& [address, block] : older) {
    meter.adopt(address, record_.blocks[block].bytes, record_.devices[record_.blocks[block].device]);
  }
}

void MemoryRecorder::stop() {
  const std::lock_guard lock(mutex_);
  meter_ = nullptr;
  recording_ = false;
  record_.seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
}

void MemoryRecorder::event(const MemoryEvent& event) {
  const std::lock_guard lock(mutex_);
  if (meter_ == nullptr) return;
  const std::size_t mark = mark_of(marks::current());
  if (event.bytes > 0) {
    alive_[event.block] = record_.blocks.size();
    record_.blocks.push_back({device_of(event.device), event.bytes, /*older=*/false, std::nullopt});
    add(MemoryStep::What::allocate, record_.blocks.size() - 1, mark);
  } else if (const auto found = alive_.find(event.block); found != alive_.end()) {
    add(MemoryStep::What::free, found->second, mark);
    alive_.erase(found);
  }
}

std::optional<std::size_t> MemoryRecorder::save(const at::Tensor& tensor) {
  if (address_of(tensor) == nullptr) return std::nullopt;
  if (!recording_) return std::nullopt;
  know(tensor, MemoryKind::inputs);
  const std::lock_guard lock(mutex_);
  const auto found = alive_.find(address_of(tensor));
  if (meter_ == nullptr || found == alive_.end()) return std::nullopt;
  add(MemoryStep::What::save, found->second, mark_of(marks::current()));
  return found->second;
}

void MemoryRecorder::let_go(std::size_t block) {
  const std::lock_guard lock(mutex_);
  if (meter_ != nullptr) add(MemoryStep::What::let_go, block, mark_of(marks::current()));
}

void MemoryRecorder::set_phase(std::string_view name) {
  const std::lock_guard lock(mutex_);
  auto& phases = record_.phases;
  const auto found = std::find(phases.begin(), phases.end(), name);
  phase_ = static_cast<std::size_t>(found - phases.begin());
  if (found == phases.end()) phases.emplace_back(name);
}

void MemoryRecorder::enter(const std::vector<std::string>& names, const torch::nn::Module&) {
  const std::lock_guard lock(mutex_);
  if (meter_ != nullptr) add(MemoryStep::What::enter, 0, mark_of(names.front()));
}

void MemoryRecorder::leave(const std::vector<std::string>& names, const torch::nn::Module&) noexcept {
  const std::lock_guard lock(mutex_);
  if (meter_ != nullptr) add(MemoryStep::What::leave, 0, mark_of(names.front()));
}

void MemoryRecorder::add(MemoryStep::What what, std::size_t block, std::size_t mark) {
  record_.steps.push_back({what, std::chrono::duration<double>(Clock::now() - begin_).count(), block, mark, phase_,
                           torch::autograd::get_current_graph_task_id() >= 0});
}

std::size_t MemoryRecorder::device_of(c10::Device device) {
  if (device.is_cpu()) device = c10::kCPU;  // without an index
  auto& devices = record_.devices;
  const auto found = std::find(devices.begin(), devices.end(), device);
  if (found != devices.end()) return static_cast<std::size_t>(found - devices.begin());
  devices.push_back(device);
  return devices.size() - 1;
}

std::size_t MemoryRecorder::mark_of(std::string_view name) {
  if (const auto found = marks_.find(name); found != marks_.end()) return found->second;
  record_.marks.emplace_back(name);
  return marks_.emplace(name, record_.marks.size() - 1).first->second;
}

}  // namespace saturate::detail
