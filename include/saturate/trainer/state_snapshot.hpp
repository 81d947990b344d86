// SPDX-License-Identifier: Apache-2.0
// What forward and backward change beside gradients, so that a window that ran out of memory halfway can begin again.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/MT19937RNGEngine.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace torch::nn {
class Module;
}

namespace saturate::detail {

/// The values of a module's buffers, and the default random generators of the CPU and of the GPUs that the module is
/// on. Parameters, gradients and the modules' modes are not part of it, nor is a generator that a module owns.
///
/// The copies are kept from one take() to the next: a take() of the same module allocates nothing after the first.
class StateSnapshot {
 public:
  /// @param device one more whose generator is kept: where the inputs are.
  void take(const torch::nn::Module& module, c10::Device device);

  /// Puts everything back, as often as asked. Graphs that have saved a buffer stay valid.
  /// @throws StateError nothing was taken.
  void restore() const;

 private:
  struct CpuRandom {
    at::mt19937 engine;
    std::optional<float> next_float;
    std::optional<double> next_double;
  };
  struct GpuRandom {
    at::Generator generator;
    uint64_t seed, offset;
  };

  void take_random(c10::Device device);

  std::vector<at::Tensor> buffers_, copies_;  // parallel
  std::optional<CpuRandom> cpu_;
  std::vector<GpuRandom> gpus_;
};

}  // namespace saturate::detail
