// SPDX-License-Identifier: Apache-2.0
#include "saturate/observe/fits.hpp"

#include "../recompute/bytes_text.hpp"
#include "saturate/error.hpp"
#include "saturate/observe/free_memory.hpp"
#include "saturate/optim/optimizer.hpp"
#include "saturate/trainer/out_of_memory.hpp"
#include "saturate/trainer/state_snapshot.hpp"
#include "saturate/trainer/step_support.hpp"

#include <ATen/ops/ones_like.h>
#include <ATen/ops/sum.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/StringUtil.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <limits>
#include <unordered_set>

namespace saturate {
namespace {

// Every parameter once.
std::vector<at::Tensor> parameters_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> result;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const at::Tensor& parameter : module.parameters()) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) result.push_back(parameter);
  }
  return result;
}

// Gradients are away, and what a step changes is as it was, when this ends. Modules are in training mode meanwhile.
class Untouched {
 public:
  Untouched(torch::nn::Module& module, c10::Device device) : parameters_(parameters_of(module)), mode_(module, true) {
    state_.take(module, device);
    for (const at::Tensor& parameter : parameters_) gradients_.push_back(parameter.grad());
    clear();
  }
  ~Untouched() {
    for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].mutable_grad() = gradients_[i];
    state_.restore();
  }
  Untouched(const Untouched&) = delete;
  Untouched& operator=(const Untouched&) = delete;

  void clear() {
    for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  }

 private:
  std::vector<at::Tensor> parameters_, gradients_;
  detail::ModeScope mode_;
  detail::StateSnapshot state_;
};

int64_t bytes_of(const torch::nn::Module& module) {
  int64_t bytes = 0;
  std::unordered_set<const c10::StorageImpl*> seen;
  const auto add = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.layout() != at::kStrided) return;
    if (seen.insert(tensor.storage().unsafeGetStorageImpl()).second) bytes += tensor.storage().nbytes();
  };
  for (const at::Tensor& parameter : module.parameters()) {
    add(parameter);
    add(parameter.grad());
  }
  for (const at::Tensor& buffer : module.buffers()) add(buffer);
  return bytes;
}

int64_t held_bytes(const torch::nn::Module& module, c10::Device device, int64_t state_now) {
  auto* allocator = device.is_cpu() ? nullptr : dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (allocator == nullptr || !allocator->initialized()) return bytes_of(module) + state_now;
  constexpr auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return allocator->getDeviceStats(device.has_index() ? device.index() : 0).allocated_bytes[all].current;
}

optim::StateBytes state_of(const torch::nn::Module& module, const optim::Optimizer* optimizer) {
  if (optimizer != nullptr) return optimizer->state_bytes();
  optim::StateBytes bytes;
  for (const at::Tensor& parameter : parameters_of(module)) {
    if (parameter.requires_grad()) bytes.to_come += 2 * static_cast<int64_t>(parameter.nbytes());
  }
  return bytes;
}

std::vector<int64_t> sizes_for(int64_t samples, const FitsOptions& options) {
  if (!options.probe_sizes.empty()) return options.probe_sizes;
  if (samples < 4) return samples == 1 ? std::vector<int64_t>{1} : std::vector<int64_t>{1, 2};
  std::vector<int64_t> sizes;
  for (const int64_t part : {8, 4, 2}) {
    if (samples / part >= 1) sizes.push_back(samples / part);
  }
  return sizes;
}

void check(int64_t samples, const FitsOptions& options) {
  if (samples < 1) throw ConfigError(c10::str("fits: the batch has ", samples, " samples; give 1 or more"));
  if (!(options.reserve >= 0 && options.reserve < 1)) {
    throw ConfigError(c10::str("fits: reserve is ", options.reserve, "; it must lie in [0, 1)"));
  }
  if (options.limit_bytes && *options.limit_bytes < 0) {
    throw ConfigError(c10::str("fits: limit_bytes is ", *options.limit_bytes, "; give 0 or more"));
  }
  for (const int64_t size : options.probe_sizes) {
    if (size < 1 || size > samples) {
      throw ConfigError(c10::str("fits: a probe of ", size, " samples, of a batch of ", samples, "; give sizes in [1, ",
                                 samples, "]"));
    }
  }
}

}  // namespace

std::string FitsReport::message() const {
  using detail::bytes_text;
  if (!forecast) return c10::str("a batch of ", samples, " does not fit: a probe of a part of it ran out of memory");
  return c10::str("a batch of ", samples, fits ? " fits: " : " does not fit: ", bytes_text(peak_bytes), " of ",
                  bytes_text(limit_bytes), " (held now ", bytes_text(held_bytes), ", optimizer state to come ",
                  bytes_text(state_bytes), ", the step ", bytes_text(step_bytes), "); up to ", largest_batch,
                  " samples would");
}

namespace detail {

FitsReport fits(torch::nn::Module& module, int64_t samples, c10::Device device,
                const std::function<void(int64_t)>& probe, const FitsOptions& options) {
  check(samples, options);
  const optim::StateBytes state = state_of(module, options.optimizer);
  FitsReport report{.samples = samples};
  report.state_bytes = state.to_come;
  const auto look = [&] {
    report.held_bytes = held_bytes(module, device, state.now);
    report.limit_bytes = options.limit_bytes ? *options.limit_bytes : report.held_bytes + free_memory_bytes(device);
  };
  look();
  try {
    Untouched untouched(module, device);
    report.forecast = forecast_memory(
        [&](int64_t n) {
          probe(n);
          untouched.clear();
        },
        sizes_for(samples, options), device);
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) throw;
    report.peak_bytes = std::numeric_limits<int64_t>::max();
    return report;
  }
  look();  // what libraries have allocated the first time, and keep (cuBLAS's workspace), is held from now on
  const auto usable = static_cast<int64_t>(static_cast<double>(report.limit_bytes) * (1 - options.reserve));
  const int64_t besides = report.held_bytes + report.state_bytes;
  report.step_bytes = report.forecast->peak_bytes(samples);
  report.peak_bytes = besides + report.step_bytes;
  report.fits = report.peak_bytes <= usable;
  report.largest_batch = report.forecast->largest_batch(usable - besides);
  return report;
}

c10::Device device_of(const torch::nn::Module& module) {
  const auto parameters = module.parameters();
  return parameters.empty() ? c10::Device(c10::kCPU) : parameters[0].device();
}

void take_rows(at::Tensor& tensor, int64_t whole, int64_t samples, c10::Device device) {
  if (!tensor.defined()) return;
  if (tensor.dim() > 0 && tensor.size(0) == whole) tensor = tensor.narrow(0, 0, samples);
  move_to(tensor, device);
}

void backward_of_sum(const at::Tensor& value) {
  const at::Tensor sum = value.dim() == 0 ? value : value.sum();
  run_backward(sum, at::ones_like(sum));
}

}  // namespace detail
}  // namespace saturate
