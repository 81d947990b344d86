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

/// The default random generators of the CPU and of some GPUs, by value: a generator's own get_state() allocates a
/// tensor every time.
class RandomState {
 public:
  /// @param gpus devices other than the CPU, each once.
  static RandomState now(const std::vector<c10::Device>& gpus);
  void restore() const;

 private:
  struct Gpu {
    at::Generator generator;
    uint64_t seed, offset;
  };
  at::mt19937 engine_;
  std::optional<float> next_float_;
  std::optional<double> next_double_;
  std::vector<Gpu> gpus_;
};

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
  std::vector<at::Tensor> buffers_, copies_;  // parallel
  std::optional<RandomState> random_;
};

}  // namespace saturate::detail
