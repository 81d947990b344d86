// SPDX-License-Identifier: Apache-2.0
// Copies batches to a device beside the work that runs there. Written against LibTorch's device-generic streams and
// events, so it needs no CUDA header and compiles everywhere.
#pragma once

#include "saturate/data/loader_options.hpp"
#include "saturate/data/source.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace saturate::data::detail {

/// Page-locked tensors for one batch. They come from LibTorch's cache of such memory, which also knows of the copies
/// that read from it: it gives a block out again only when those have finished, whoever started them.
std::vector<at::Tensor> pinned_batch(const std::vector<FieldLayout>& layout, int64_t samples);

class DeviceTransfer {
 public:
  /// @throws ConfigError when there is no such device.
  explicit DeviceTransfer(c10::Device device);

  struct Events {
    c10::Event begun, done;
  };
  struct Copied {
    std::vector<at::Tensor> tensors;
    std::shared_ptr<Events> events;
  };
  /// Starts the copies, and `transform` where there is one, on a stream of its own and returns. Any thread.
  Copied copy(const std::vector<at::Tensor>& pinned, const BatchTransform& transform, std::span<const SampleAt> at);
  /// Makes the calling thread's current stream wait for the copies (the thread does not), and tells the allocator that
  /// the tensors are used there.
  void hand_over(const Copied& copied) const;
  /// What the device took for the copies and transforms that have ended by now.
  double seconds() const;

 private:
  void collect() const;

  c10::Device device_;
  c10::Stream stream_;
  mutable std::mutex mutex_;
  mutable std::deque<std::shared_ptr<Events>> running_;
  mutable double seconds_ = 0;
};

}  // namespace saturate::data::detail
