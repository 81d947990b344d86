// SPDX-License-Identifier: Apache-2.0
// Counts optimizer steps where only the device may know whether a step was taken, without waiting for it.
#pragma once

#include "saturate/optim/optimizer.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <functional>
#include <optional>

namespace saturate {

/// On the host where it can be: a CPU tensor is host memory, and reading it waits for nobody. For a GPU the number
/// lives there; the learning rate is then looked up there in a table that the host fills ahead, and the host's own
/// number lags behind until a copy arrives.
class StepCounter {
 public:
  /// @param on_device keep the number on the device; the default of the Trainer is device.is_cuda().
  StepCounter(c10::Device device, bool on_device) : device_(device), on_device_(on_device) {}

  /// After a window. @param refused 0-dim float32, 1: not taken; undefined: taken.
  void advance(const at::Tensor& refused);
  /// Fills the learning-rate part of `args` for the coming step.
  void fill(optim::StepArgs& args, const std::function<double(int64_t)>& factor);

  /// Steps taken, as far as the host knows without waiting: a lower bound that is exact on the CPU.
  int64_t known();
  /// Steps taken; waits for the device where it must.
  int64_t exact();
  void set(int64_t step);
  /// The factors have changed: what was filled ahead is not to be used.
  void forget_factors() { table_ = at::Tensor(); }

 private:
  void follow();
  void refresh();

  static constexpr int64_t table_size = 4096;

  c10::Device device_;
  bool on_device_;
  int64_t host_ = 0;     // exact until the device takes over, then a lower bound
  int64_t unknown_ = 0;  // windows since `host_` was last exact
  at::Tensor step_;      // 0-dim int64 on the device, once it has taken over
  at::Tensor table_;     // factors of the steps from table_first_ on, float32 on the device
  int64_t table_first_ = 0;
  at::Tensor arriving_;  // pinned copy of step_ under way
  int64_t arriving_window_ = 0;
  int64_t window_ = 0;
  std::optional<c10::Event> arrived_;
};

}  // namespace saturate
