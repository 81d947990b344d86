// SPDX-License-Identifier: Apache-2.0
// Dynamic loss scaling for float16 (Micikevicius et al., "Mixed Precision Training", 2018), with PyTorch's semantics.
// In a loop of your own:
//
//   GradScaler scaler;
//   { AutocastScope autocast(device.type(), torch::kHalf); loss = loss_fn(net->forward(x), y); }
//   scaler.scale(loss).backward();
//   scaler.unscale_(optimizer);   // only to clip or to look at gradients; step() does it otherwise
//   scaler.step(optimizer);       // skipped when a gradient is inf or NaN
//   scaler.update();
//   optimizer.zero_grad();
#pragma once

#include "saturate/optim/optimizer.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace saturate {

/// Defaults are PyTorch's; the floor is ours: without one, 166 overflows in a row take 65536 to 0, and the next finite
/// step makes the weights NaN.
struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;  ///< steps without inf or NaN in a row before the scale grows
  double min_scale = 1;            ///< the scale never goes below

  /// @throws ConfigError growth_factor not above 1, backoff_factor outside (0, 1), growth_interval below 1, min_scale
  /// not
  ///   above 0 or above init_scale, a value that is not finite.
  void validate() const;
};

/// What has to be saved, under the names that PyTorch's state_dict has.
struct GradScalerState {
  double scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  int64_t growth_tracker = 0;  ///< steps without inf or NaN in a row so far
};

/// The scale, its growth tracker and found_inf live on the device: nothing here reads them on the host but get_scale()
/// and state().
class GradScaler {
 public:
  explicit GradScaler(const GradScalerOptions& options = {});

  /// loss * scale, with the scale on the loss's device.
  at::Tensor scale(const at::Tensor& loss);
  /// Divides the optimizer's gradients by the scale, and looks for inf and NaN in them.
  /// @throws StateError a second time since update(), after step(), before anything was scaled.
  /// @throws ConfigError a float16 gradient: dividing it in place would underflow; see optim::MasterWeights.
  void unscale_(optim::Optimizer& optimizer);
  void unscale_(torch::optim::Optimizer& optimizer);
  /// Unscales, where unscale_() has not, and steps unless a gradient is inf or NaN: on the device, without a host read.
  /// @throws StateError a second time since update(), or when no parameter has a gradient (no backward before).
  void step(optim::Optimizer& optimizer, optim::StepArgs args = {});
  /// The same for LibTorch's own optimizers, which cannot skip on the device: reads the flag on the host.
  void step(torch::optim::Optimizer& optimizer);
  /// Once an iteration, after the step of every optimizer: backs the scale off when any of them found an inf or NaN,
  /// else counts towards growth.
  /// @throws StateError no optimizer was unscaled or stepped since the last update.
  void update();
  /// Sets the scale by hand. @throws ConfigError not finite, or below the floor.
  void update(double new_scale);

  /// Waits for the device, as state() does.
  double get_scale() const;
  GradScalerState state() const;
  /// @throws StateError a value that cannot work; nothing has changed then.
  void load_state(const GradScalerState& state);

  // What the above are made of, for a loop that keeps no stages (the Trainer's).

  /// 0-dim float32 on `device`.
  at::Tensor scale_on(c10::Device device);
  /// Divides `gradients` (of any devices and dtypes but float16) in place; 0-dim float32 on the scale's device, 1: one
  /// of them is inf or NaN.
  at::Tensor unscale(const std::vector<at::Tensor>& gradients);
  /// Back off or count towards growth. @param idle undefined or 0-dim float32, 1: leave everything as it was.
  void update(const at::Tensor& found_inf, const at::Tensor& idle);

 private:
  enum class Stage { ready, unscaled, stepped };
  struct OfOptimizer {
    Stage stage = Stage::ready;
    at::Tensor found_inf;
  };

  OfOptimizer& begin_unscale(const void* optimizer);
  OfOptimizer& begin_step(const void* optimizer);
  void finish_unscale(OfOptimizer& entry, const std::vector<at::Tensor>& gradients);
  const at::Tensor& scale_tensor(c10::Device device);

  GradScalerOptions options_;
  double initial_scale_;
  int64_t initial_tracker_ = 0;
  at::Tensor scale_;    // 0-dim float32; made at the first use, where the loss is
  at::Tensor tracker_;  // 0-dim int32
  std::unordered_map<const void*, OfOptimizer> optimizers_;
};

}  // namespace saturate
