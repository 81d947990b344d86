// SPDX-License-Identifier: Apache-2.0
#include "captured_state.hpp"

#include "saturate/error.hpp"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/StringUtil.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <typeindex>
#include <typeinfo>

namespace saturate::detail {
namespace {

// A buffer that is larger is a table (a mask, positions), not a state that a forward changes.
constexpr int64_t small_buffer = int64_t{1} << 20;
constexpr std::array autocast_devices = {c10::DeviceType::CPU, c10::DeviceType::CUDA};

template <class Visit>
void walk(const torch::nn::Module& module, const std::string& name, Visit& visit) {
  visit(module, name);
  for (const auto& child : module.named_children()) walk(*child.value(), name + child.key() + ".", visit);
}

// Training mode does not read what these update.
bool only_writes_its_statistics(const torch::nn::Module& module) {
  static const std::array types = {
      std::type_index(typeid(torch::nn::BatchNorm1dImpl)),    std::type_index(typeid(torch::nn::BatchNorm2dImpl)),
      std::type_index(typeid(torch::nn::BatchNorm3dImpl)),    std::type_index(typeid(torch::nn::InstanceNorm1dImpl)),
      std::type_index(typeid(torch::nn::InstanceNorm2dImpl)), std::type_index(typeid(torch::nn::InstanceNorm3dImpl))};
  return std::find(types.begin(), types.end(), std::type_index(typeid(module))) != types.end();
}

at::Generator generator_of(c10::Device device) { return at::globalContext().defaultGenerator(device); }

void note_gpu(std::vector<c10::Device>& gpus, const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return;
  if (std::find(gpus.begin(), gpus.end(), tensor.device()) == gpus.end()) gpus.push_back(tensor.device());
}

}  // namespace

KeptTensor::KeptTensor(const at::Tensor& tensor)
    : values_(tensor.tensor_data()), version_(tensor.is_inference() ? -1 : tensor._version()) {}

bool KeptTensor::changed() const { return version_ >= 0 && values_._version() != version_; }

std::string KeptTensor::story() const {
  return c10::str(describe(sizes_of(values_), values_.scalar_type(), values_.device()), ", version ", version_,
                  ", now ", values_._version());
}

std::string describe(at::IntArrayRef sizes, at::ScalarType dtype, c10::Device device) {
  return c10::str(sizes, " ", c10::toString(dtype), " on ", device);
}

at::IntArrayRef sizes_of(const at::Tensor& tensor) { return tensor.is_nested() ? at::IntArrayRef() : tensor.sizes(); }

// Random streams -----------------------------------------------------------------------------------------------------

RandomStreams RandomStreams::now(const std::vector<c10::Device>& gpus) {
  RandomStreams streams;
  const auto take = [&](c10::Device device) {
    at::Generator generator = generator_of(device);
    const std::lock_guard lock(generator.mutex());
    streams.states_.emplace_back(device, generator.get_state());
  };
  take(c10::Device(c10::kCPU));
  for (const c10::Device gpu : gpus) take(gpu);
  return streams;
}

void RandomStreams::restore() const {
  for (const auto& [device, state] : states_) {
    at::Generator generator = generator_of(device);
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
}

bool RandomStreams::operator==(const RandomStreams& other) const {
  return std::equal(states_.begin(), states_.end(), other.states_.begin(), other.states_.end(),
                    [](const auto& a, const auto& b) {
                      return a.first == b.first && a.second.nbytes() == b.second.nbytes() &&
                             std::memcmp(a.second.const_data_ptr(), b.second.const_data_ptr(), a.second.nbytes()) == 0;
                    });
}

// Autocast -----------------------------------------------------------------------------------------------------------

AutocastState AutocastState::now() {
  AutocastState state;
  for (std::size_t i = 0; i < autocast_devices.size(); ++i) {
    state.devices_[i] = {at::autocast::is_autocast_enabled(autocast_devices[i]),
                         at::autocast::get_autocast_dtype(autocast_devices[i])};
  }
  state.cache_ = at::autocast::is_autocast_cache_enabled();
  return state;
}

void AutocastState::set() const {
  for (std::size_t i = 0; i < autocast_devices.size(); ++i) {
    at::autocast::set_autocast_enabled(autocast_devices[i], devices_[i].enabled);
    at::autocast::set_autocast_dtype(autocast_devices[i], devices_[i].dtype);
  }
  at::autocast::set_autocast_cache_enabled(cache_);
}

// Parameters and buffers ---------------------------------------------------------------------------------------------

BlockTensors::BlockTensors(const BlockParts& parts) {
  for (const torch::nn::Module* module : parts.modules) {
    auto visit = [&](const torch::nn::Module& part, const std::string&) { add(part); };
    walk(*module, {}, visit);
  }
}

void BlockTensors::add(const torch::nn::Module& module) {
  for (const at::Tensor& parameter : module.parameters(/*recurse=*/false)) parameters_.emplace_back(parameter);
  const auto buffers = module.buffers(/*recurse=*/false);
  if (buffers.empty()) return;
  const bool write_only = only_writes_its_statistics(module);
  for (const at::Tensor& buffer : buffers) {
    if (!buffer.defined()) continue;
    const bool small = static_cast<int64_t>(buffer.nbytes()) <= small_buffer;
    buffers_.push_back({KeptTensor(buffer), small && !write_only ? buffer.data().clone() : at::Tensor(), small});
    buffer_impls_.push_back(buffer.unsafeGetTensorImpl());
  }
}

void BlockTensors::forward_done() {
  for (Buffer& buffer : buffers_) {
    if (!buffer.kept.changed()) {
      buffer.before.reset();
    } else if (!buffer.small) {
      throw StateError("recompute: the block's forward changes a buffer (" + buffer.kept.story() +
                       "), which is too large to be kept twice; keep that part out of the recomputed block");
    }
  }
}

void BlockTensors::require_unchanged(const BlockParts& parts) const {
  const auto changed =
      std::find_if(parameters_.begin(), parameters_.end(), [](const KeptTensor& kept) { return kept.changed(); });
  if (changed == parameters_.end()) return;
  std::string name;
  auto left = changed - parameters_.begin();
  for (const torch::nn::Module* module : parts.modules) {
    auto visit = [&](const torch::nn::Module& part, const std::string& prefix) {
      for (const auto& item : part.named_parameters(/*recurse=*/false)) {
        if (left-- == 0) name = prefix + item.key();
      }
    };
    walk(*module, {}, visit);
  }
  throw StateError("recompute: parameter " + (name.empty() ? name : "'" + name + "' ") +
                   "of the block was changed in place between forward and backward (" + changed->story() +
                   "): a second forward would compute something else; change it after backward");
}

bool BlockTensors::has_buffer(const at::Tensor& tensor) const {
  return std::find(buffer_impls_.begin(), buffer_impls_.end(), tensor.unsafeGetTensorImpl()) != buffer_impls_.end();
}

BlockTensors::Again::Again(const BlockTensors& tensors) {
  const at::NoGradGuard no_grad;
  // Through values that have a version of their own: a plain copy_() would make autograd refuse every graph that has
  // saved the buffer.
  for (const Buffer& buffer : tensors.buffers_) {
    if (!buffer.small) continue;
    const at::Tensor values = buffer.kept.values().variable_data();
    now_.emplace_back(values, values.clone());
  }
  for (const Buffer& buffer : tensors.buffers_) {
    if (buffer.before.defined()) buffer.kept.values().variable_data().copy_(buffer.before);
  }
}

BlockTensors::Again::~Again() {
  const at::NoGradGuard no_grad;
  for (auto& [buffer, values] : now_) buffer.copy_(values);
}

// The rest -----------------------------------------------------------------------------------------------------------

CapturedState::CapturedState(const BlockTensors& tensors, const std::vector<at::Tensor>& inputs)
    : autocast_(AutocastState::now()) {
  for (const at::Tensor& input : inputs) note_gpu(gpus_, input);
  for (const KeptTensor& parameter : tensors.parameters()) note_gpu(gpus_, parameter.values());
  if (gpus_.empty() && at::hasCUDA() && at::detail::getCUDAHooks().hasPrimaryContext(0)) {
    gpus_.push_back(c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice());  // a callable may use it all the same
  }
  if (!gpus_.empty()) gpu_ = c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice();
  random_ = RandomStreams::now(gpus_);
}

void CapturedState::forward_done() {
  if (random_ && *random_ == RandomStreams::now(gpus_)) random_.reset();
}

CapturedState::Again::Again(const CapturedState& state)
    : device_(state.gpu_), autocast_now_(AutocastState::now()), marks_(state.marks_) {
  if (state.random_) {
    random_now_ = RandomStreams::now(state.gpus_);
    state.random_->restore();
  }
  state.autocast_.set();
  at::autocast::increment_nesting();
}

CapturedState::Again::~Again() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  autocast_now_.set();
  if (random_now_) random_now_->restore();
}

}  // namespace saturate::detail
