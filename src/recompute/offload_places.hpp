// SPDX-License-Identifier: Apache-2.0
// Where Offload stores saved tensors.
#pragma once

#include "saved_store.hpp"

#include <c10/core/Stream.h>

#include <map>
#include <mutex>

namespace saturate::detail {

/// CUDA tensors go to page-locked host memory and back, on one stream of its own a device.
class PinnedHost final : public SavedPlace {
 public:
  bool takes(const at::Tensor& tensor) const override { return tensor.is_cuda(); }
  std::unique_ptr<Transfer> send(const at::Tensor& bytes) override;
  std::unique_ptr<Transfer> fetch(const at::Tensor& stored, c10::Device device) override;
  bool worth_fetching_ahead() const override { return true; }
  std::string what_it_takes(int64_t min_bytes) const override;

 private:
  c10::Stream stream_of(c10::Device device);

  std::mutex mutex_;
  std::map<c10::DeviceIndex, c10::Stream> streams_;
};

/// CPU tensors are copied to memory that no tensor allocator knows, as device memory knows nothing of the host's.
class CpuCopy final : public SavedPlace {
 public:
  bool takes(const at::Tensor& tensor) const override { return tensor.is_cpu(); }
  std::unique_ptr<Transfer> send(const at::Tensor& bytes) override;
  std::unique_ptr<Transfer> fetch(const at::Tensor& stored, c10::Device device) override;
  bool worth_fetching_ahead() const override { return true; }
  std::string what_it_takes(int64_t min_bytes) const override;
};

}  // namespace saturate::detail
