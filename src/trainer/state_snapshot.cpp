// SPDX-License-Identifier: Apache-2.0
#include "saturate/trainer/state_snapshot.hpp"

#include "saturate/error.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty_like.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>
#include <unordered_set>
#include <utility>

namespace saturate::detail {
namespace {

// Each once, though its module be registered twice. A forward outside inference mode cannot change an inference tensor.
std::vector<at::Tensor> buffers_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> result;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (at::Tensor& buffer : module.buffers()) {
    if (!buffer.defined() || buffer.is_inference() || !seen.insert(buffer.unsafeGetTensorImpl()).second) continue;
    result.push_back(std::move(buffer));
  }
  return result;
}

bool alike(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() && a.device() == b.device() &&
         a.layout() == b.layout();
}

// Through values that have a version of their own: a plain copy_() into a buffer would make autograd refuse every graph
// that has saved it.
std::vector<at::Tensor> values_of(const std::vector<at::Tensor>& buffers) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& buffer : buffers) result.push_back(buffer.variable_data());
  return result;
}

// A few launches, however many buffers: BatchNorm has three a layer.
void copy_all(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) {
  using Lists = std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>>;
  std::map<std::tuple<c10::DeviceType, c10::DeviceIndex, at::ScalarType>, Lists> kinds;
  for (std::size_t i = 0; i < to.size(); ++i) {
    auto& [targets, sources] = kinds[{to[i].device().type(), to[i].device().index(), to[i].scalar_type()}];
    targets.push_back(to[i]);
    sources.push_back(from[i]);
  }
  for (auto& [kind, lists] : kinds) at::_foreach_copy_(lists.first, lists.second, /*non_blocking=*/true);
}

std::vector<c10::Device> gpus_of(const torch::nn::Module& module, c10::Device device) {
  std::vector<c10::Device> gpus;
  const auto add = [&](c10::Device used) {
    if (used.is_cuda() && std::find(gpus.begin(), gpus.end(), used) == gpus.end()) gpus.push_back(used);
  };
  add(device.is_cuda() && !device.has_index() ? c10::Device(c10::kCUDA, 0) : device);
  for (const at::Tensor& parameter : module.parameters()) add(parameter.device());
  for (const at::Tensor& buffer : module.buffers()) {
    if (buffer.defined()) add(buffer.device());
  }
  return gpus;
}

at::CPUGeneratorImpl& cpu_generator() {
  return *at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator());
}

}  // namespace

RandomState RandomState::now(const std::vector<c10::Device>& gpus) {
  RandomState state;
  {
    at::CPUGeneratorImpl& generator = cpu_generator();
    const std::lock_guard lock(generator.mutex_);
    state.engine_ = generator.engine();
    state.next_float_ = generator.next_float_normal_sample();
    state.next_double_ = generator.next_double_normal_sample();
  }
  for (const c10::Device gpu : gpus) {
    at::Generator generator = at::globalContext().defaultGenerator(gpu);
    const std::lock_guard lock(generator.mutex());
    state.gpus_.push_back({generator, generator.current_seed(), generator.get_offset()});
  }
  return state;
}

void RandomState::restore() const {
  {
    at::CPUGeneratorImpl& generator = cpu_generator();
    const std::lock_guard lock(generator.mutex_);
    generator.set_engine(engine_);
    generator.set_next_float_normal_sample(next_float_);
    generator.set_next_double_normal_sample(next_double_);
  }
  for (const Gpu& gpu : gpus_) {
    at::Generator generator = gpu.generator;
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(gpu.seed);  // also sets the offset to 0
    generator.set_offset(gpu.offset);
  }
}

void StateSnapshot::take(const torch::nn::Module& module, c10::Device device) {
  const at::NoGradGuard no_grad;
  random_.reset();  // nothing is taken if what follows throws
  buffers_ = buffers_of(module);
  const std::vector<at::Tensor> values = values_of(buffers_);
  if (!std::equal(values.begin(), values.end(), copies_.begin(), copies_.end(), alike)) {
    copies_.clear();
    for (const at::Tensor& value : values) copies_.push_back(at::empty_like(value));
  }
  copy_all(copies_, values);
  random_ = RandomState::now(gpus_of(module, device));
}

void StateSnapshot::restore() const {
  if (!random_) throw StateError("StateSnapshot: nothing was taken; call take() before restore()");
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    // Given other values as a whole since: what it holds now has no place for the copy.
    if (!alike(buffers_[i], copies_[i])) at::Tensor(buffers_[i]).set_data(at::empty_like(copies_[i]));
  }
  copy_all(values_of(buffers_), copies_);
  random_->restore();
}

}  // namespace saturate::detail
