// SPDX-License-Identifier: Apache-2.0
#include "saturate/observe/memory_report.hpp"

#include "../torch_seam/saved_tensors.hpp"
#include "memory_recorder.hpp"
#include "memory_sweep.hpp"
#include "saturate/error.hpp"
#include "saturate/observe/fits.hpp"
#include "saturate/observe/memory_meter.hpp"

#include <c10/core/CachingDeviceAllocator.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

namespace saturate {
namespace detail {
namespace {

using Recorder = std::shared_ptr<MemoryRecorder>;

/// Notes each gradient when it has been accumulated, and lets a hook that was there before go on.
class GradientHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  using Inner = std::unique_ptr<torch::autograd::PostAccumulateGradHook>;
  GradientHook(Recorder recorder, Inner inner) : recorder_(std::move(recorder)), inner_(std::move(inner)) {}

  void operator()(const at::Tensor& parameter) override {
    recorder_->claim(parameter.grad(), MemoryKind::gradients);
    if (inner_) (*inner_)(parameter);
  }
  Inner take_inner() { return std::move(inner_); }

 private:
  Recorder recorder_;
  Inner inner_;
};

class WatchedGradients {
 public:
  WatchedGradients(const std::vector<at::Tensor>& parameters, const Recorder& recorder) {
    for (const at::Tensor& parameter : parameters) {
      if (!parameter.requires_grad()) continue;
      auto& hook = torch::autograd::impl::post_acc_grad_hooks(parameter);
      if (dynamic_cast<GradientHook*>(hook.get()) != nullptr) continue;  // of a parameter that comes twice
      torch::autograd::impl::set_post_acc_grad_hooks(parameter,
                                                     std::make_unique<GradientHook>(recorder, std::move(hook)));
      watched_.push_back(parameter);
    }
  }
  ~WatchedGradients() {
    for (const at::Tensor& parameter : watched_) {
      auto& hook = torch::autograd::impl::post_acc_grad_hooks(parameter);
      if (auto* ours = dynamic_cast<GradientHook*>(hook.get())) hook = ours->take_inner();
    }
  }
  WatchedGradients(const WatchedGradients&) = delete;
  WatchedGradients& operator=(const WatchedGradients&) = delete;

 private:
  std::vector<at::Tensor> watched_;
};

class Recording {
 public:
  explicit Recording(Recorder recorder)
      : recorder_(std::move(recorder)), meter_([this](const MemoryEvent& event) { recorder_->event(event); }) {
    recorder_->start(meter_);
  }
  ~Recording() { recorder_->stop(); }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

 private:
  Recorder recorder_;
  MemoryMeter meter_;
};

void require_outermost() {
  if (torch::autograd::get_current_graph_task_id() >= 0) {
    throw StateError("measure_memory: this is inside a backward pass; measure whole steps");
  }
  if (torch_seam::current_packer() != nullptr) {
    throw StateError(
        "measure_memory: this is inside another measurement, or a block that is recomputed or offloaded, which sees "
        "autograd's saved tensors in its place; measure from outside");
  }
}

std::optional<c10::CachingDeviceAllocator::DeviceStats> allocator_stats(c10::Device device) {
  if (device.is_cpu()) return std::nullopt;
  auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (allocator == nullptr || !allocator->initialized()) return std::nullopt;
  return allocator->getDeviceStats(device.index());
}

std::optional<AllocatorState> allocator_state(c10::Device device, int64_t retries_before, int64_t oom_before) {
  const auto stats = allocator_stats(device);
  if (!stats) return std::nullopt;
  constexpr auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return AllocatorState{stats->reserved_bytes[all].current, stats->allocated_bytes[all].current,
                        stats->inactive_split_bytes[all].current, stats->num_alloc_retries - retries_before,
                        stats->num_ooms - oom_before};
}

template <class Claim>
void claim_known(const torch::nn::Module& model, const StateTensors& state, Claim&& claim) {
  for (const at::Tensor& parameter : model.parameters()) claim(parameter, MemoryKind::parameters);
  for (const at::Tensor& buffer : model.buffers()) claim(buffer, MemoryKind::parameters);
  for (const at::Tensor& tensor : state.value_or(std::vector<at::Tensor>())) claim(tensor, MemoryKind::optimizer_state);
  for (const at::Tensor& parameter : model.parameters()) claim(parameter.grad(), MemoryKind::gradients);
}

}  // namespace

MemoryReport measure_memory(const torch::nn::Module& model, const std::function<StateTensors()>& state,
                            const std::function<void(StepPhases&)>& step, const MemoryOptions& options) {
  require_outermost();
  MemoryReport report;
  report.saved_tensors_known = torch_seam::install_engine();
  const auto recorder = std::make_shared<MemoryRecorder>(detail::device_of(model));
  claim_known(model, state(), [&](const at::Tensor& tensor, MemoryKind kind) { recorder->claim(tensor, kind); });
  std::map<c10::Device, std::pair<int64_t, int64_t>, bool (*)(c10::Device, c10::Device)> failed_before(
      [](c10::Device a, c10::Device b) { return std::pair(a.type(), a.index()) < std::pair(b.type(), b.index()); });
  for (const c10::Device device : recorder->record().devices) {
    if (const auto stats = allocator_stats(device)) failed_before[device] = {stats->num_alloc_retries, stats->num_ooms};
  }
  {
    const Recording recording(recorder);
    const WatchedGradients gradients(model.parameters(), recorder);
    const marks::Scope scope(marks::bind(model), recorder.get());
    const torch_seam::PackScope packs(report.saved_tensors_known ? recorder.get() : nullptr);
    StepPhases phases(*recorder);
    step(phases);
  }
  const StateTensors state_now = state();
  report.optimizer_state_known = state_now.has_value();
  claim_known(model, state_now, [&](const at::Tensor& tensor, MemoryKind kind) { recorder->claim_new(tensor, kind); });
  sweep(recorder->record(), report);
  for (std::size_t i = 0; i < report.devices.size(); ++i) {
    const c10::Device device = recorder->record().devices[i];
    const auto [retries, oom] = failed_before[device];
    report.devices[i].allocator = allocator_state(device, retries, oom);
  }
  report.slot_bytes = options.slot_bytes;
  report.resident_bytes = resident_bytes();
  report.resident_peak_bytes = resident_peak_bytes();
  return report;
}

}  // namespace detail

void StepPhases::operator()(std::string_view name) { recorder_.set_phase(name); }

const ModuleMemory* MemoryReport::module(std::string_view name) const {
  const auto found = std::find_if(modules.begin(), modules.end(), [&](const auto& m) { return m.name == name; });
  return found == modules.end() ? nullptr : &*found;
}

const PhaseMemory* MemoryReport::phase(std::string_view name) const {
  const auto found = std::find_if(phases.begin(), phases.end(), [&](const auto& p) { return p.name == name; });
  return found == phases.end() ? nullptr : &*found;
}

}  // namespace saturate
