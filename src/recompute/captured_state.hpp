// SPDX-License-Identifier: Apache-2.0
// What a forward pass depends on besides its inputs and parameters, so that it can run again as it ran.
#pragma once

#include "saturate/marks.hpp"
#include "saturate/recompute/detail/run_block.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace saturate::detail {

/// A tensor shared with its owner, with the version it had.
class KeptTensor {
 public:
  KeptTensor() = default;
  explicit KeptTensor(const at::Tensor& tensor);
  /// The values, without a graph.
  const at::Tensor& values() const { return values_; }
  bool changed() const;
  /// "[8, 16] Float, version 0, now 1"
  std::string story() const;

 private:
  at::Tensor values_;
  int64_t version_ = 0;
};

/// "[8, 16] Float on cpu"
std::string describe(at::IntArrayRef sizes, at::ScalarType dtype, c10::Device device);
/// Empty for a nested tensor, which has none.
at::IntArrayRef sizes_of(const at::Tensor& tensor);

/// The default generators of the CPU and of CUDA devices.
class RandomStreams {
 public:
  static RandomStreams now(const std::vector<c10::Device>& gpus);
  void restore() const;
  bool operator==(const RandomStreams& other) const;

 private:
  std::vector<std::pair<c10::Device, at::Tensor>> states_;
};

/// Autocast of the CPU and of CUDA, on this thread.
class AutocastState {
 public:
  static AutocastState now();
  void set() const;

 private:
  struct One {
    bool enabled;
    at::ScalarType dtype;
  };
  std::array<One, 2> devices_;
  bool cache_;
};

/// The parameters and buffers of a block's modules.
class BlockTensors {
 public:
  explicit BlockTensors(const BlockParts& parts);

  /// To be called after the first forward. @throws StateError it has changed a buffer too large to be kept twice.
  void forward_done();
  /// @throws StateError a parameter was changed in place since the first forward.
  void require_unchanged(const BlockParts& parts) const;
  /// Of a block whose modules are not known.
  void add_parameter(const at::Tensor& parameter) { parameters_.emplace_back(parameter); }
  const std::vector<KeptTensor>& parameters() const { return parameters_; }
  /// Whether `tensor` is one of the buffers.
  bool has_buffer(const at::Tensor& tensor) const;

  /// Buffers are what they were before the first forward while this lives, and then what they are now.
  class Again {
   public:
    explicit Again(const BlockTensors& tensors);
    ~Again();
    Again(const Again&) = delete;
    Again& operator=(const Again&) = delete;

   private:
    std::vector<std::pair<at::Tensor, at::Tensor>> now_;
  };

 private:
  struct Buffer {
    KeptTensor kept;
    at::Tensor before;  // a copy; undefined: the forward does not read what it changes, or changes nothing
    bool small;
  };
  void add(const torch::nn::Module& module);

  std::vector<KeptTensor> parameters_;
  std::vector<Buffer> buffers_;
  std::vector<const c10::TensorImpl*> buffer_impls_;
};

/// Everything else.
class CapturedState {
 public:
  CapturedState(const BlockTensors& tensors, const std::vector<at::Tensor>& inputs);
  /// To be called after the first forward: what it has not used is not restored.
  void forward_done();

  /// The state on this thread while this lives.
  class Again {
   public:
    explicit Again(const CapturedState& state);
    ~Again();
    Again(const Again&) = delete;
    Again& operator=(const Again&) = delete;

   private:
    const at::AutoGradMode grad_mode_{true};
    c10::OptionalDeviceGuard device_;
    std::optional<RandomStreams> random_now_;
    AutocastState autocast_now_;
    marks::Snapshot::Again marks_;
  };

 private:
  std::vector<c10::Device> gpus_;
  std::optional<c10::Device> gpu_;  // the current one
  std::optional<RandomStreams> random_;
  AutocastState autocast_;
  marks::Snapshot marks_;
};

}  // namespace saturate::detail
