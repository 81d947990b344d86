// SPDX-License-Identifier: Apache-2.0
#include "device_transfer.hpp"

#include "saturate/error.hpp"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <string>
#include <utility>

namespace saturate::data::detail {
namespace {

std::vector<int64_t> batch_sizes(const FieldLayout& field, int64_t samples) {
  std::vector<int64_t> sizes{samples};
  sizes.insert(sizes.end(), field.shape.begin(), field.shape.end());
  return sizes;
}

c10::Device checked(c10::Device device) {
  if (!device.is_cuda() || !at::hasCUDA()) {
    throw ConfigError("PrefetchLoader: device is " + device.str() + ", which is not there; batches can go to the CPU" +
                      (at::hasCUDA() ? " or a CUDA device" : ""));
  }
  const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  if (!device.has_index()) return guard.getDevice();
  if (device.index() >= guard.deviceCount()) {
    throw ConfigError("PrefetchLoader: device is " + device.str() + ", but there are " +
                      std::to_string(static_cast<int>(guard.deviceCount())) + " CUDA devices");
  }
  return device;
}

}  // namespace

std::vector<at::Tensor> pinned_batch(const std::vector<FieldLayout>& layout, int64_t samples) {
  const c10::InferenceMode normal(false);
  std::vector<at::Tensor> tensors;
  tensors.reserve(layout.size());
  for (const FieldLayout& field : layout) {
    tensors.push_back(at::empty(batch_sizes(field, samples), at::TensorOptions(field.dtype).pinned_memory(true),
                                field.memory_format));
  }
  return tensors;
}

DeviceTransfer::DeviceTransfer(c10::Device device)
    : device_(checked(device)), stream_(c10::impl::VirtualGuardImpl(c10::kCUDA).getStreamFromGlobalPool(device_)) {}

DeviceTransfer::Copied DeviceTransfer::copy(const std::vector<at::Tensor>& pinned, const BatchTransform& transform,
                                            std::span<const SampleAt> at) {
  const c10::InferenceMode normal(false);
  const c10::StreamGuard on_stream(stream_);
  const auto event = [] { return c10::Event(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT); };  // one that keeps time
  Copied copied{{}, std::make_shared<Events>(Events{event(), event()})};
  copied.events->begun.record(stream_);
  copied.tensors.reserve(pinned.size());
  for (const at::Tensor& host : pinned) {
    copied.tensors.push_back(
        at::empty_strided(host.sizes(), host.strides(), host.options().device(device_).pinned_memory(false)));
    copied.tensors.back().copy_(host, /*non_blocking=*/true);
  }
  if (transform) transform(copied.tensors, at);
  copied.events->done.record(stream_);
  const std::lock_guard lock(mutex_);
  collect();
  running_.push_back(copied.events);
  return copied;
}

void DeviceTransfer::hand_over(const Copied& copied) const {
  const c10::Stream current = c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(device_);
  copied.events->done.block(current);
  for (const at::Tensor& tensor : copied.tensors) tensor.record_stream(current);
}

void DeviceTransfer::collect() const {
  while (!running_.empty() && running_.front()->done.query()) {
    seconds_ += 1e-3 * running_.front()->begun.elapsedTime(running_.front()->done);
    running_.pop_front();
  }
}

double DeviceTransfer::seconds() const {
  const std::lock_guard lock(mutex_);
  collect();
  return seconds_;
}

}  // namespace saturate::data::detail
