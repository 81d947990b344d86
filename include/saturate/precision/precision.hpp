// SPDX-License-Identifier: Apache-2.0
// The precision axis: Fp32 (default), Tf32, Bf16 and Fp16.
#pragma once

#include "saturate/policy.hpp"
#include "saturate/precision/autocast_scope.hpp"
#include "saturate/precision/fp32_islands.hpp"
#include "saturate/precision/grad_scaler.hpp"
#include "saturate/precision/tf32_scope.hpp"

#include <c10/core/Device.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <memory>
#include <string>
#include <utility>

namespace saturate {

/// The dtype the model has: no autocast. The default.
struct Fp32 {
  using axis = saturate::axis::precision;

  struct Nothing {
    ~Nothing() {}  // not trivial: a named scope is no unused variable
  };
  Nothing scope(c10::DeviceType) const { return {}; }
};
static_assert(PrecisionPolicy<Fp32> && !ScalesGradients<Fp32>);

/// float32 tensors, whose matrix products and convolutions a GPU since Ampere rounds to TensorFloat-32 (10 bits of
/// mantissa) and adds up in float32. Nothing on a CPU, which is warned about.
struct Tf32 {
  using axis = saturate::axis::precision;

  Tf32Scope scope(c10::DeviceType) const { return Tf32Scope(); }
  /// Spans a whole window: backward multiplies too.
  Tf32Scope window_scope() const { return Tf32Scope(); }
  void attach(const torch::nn::Module&, c10::Device device) const { warn_without_gpu(device); }

 private:
  static void warn_without_gpu(c10::Device device);
};
static_assert(PrecisionPolicy<Tf32> && !ScalesGradients<Tf32>);

namespace detail {

/// Autocast and the islands in it.
class AutocastPass {
 public:
  AutocastPass(c10::DeviceType device, c10::ScalarType dtype, Fp32Islands& islands)
      : autocast_(device, dtype), marks_(islands.scope()) {}

 private:
  AutocastScope autocast_;
  std::unique_ptr<marks::Scope> marks_;
};

/// What Bf16 and Fp16 share.
template <class Policy>
class AutocastPolicy {
 public:
  using axis = saturate::axis::precision;

  /// Parts whose whole name matches the regular expression run in float32. Before training, chained:
  /// `Bf16{}.keep_fp32(".*norm.*")`; or while training, on the Trainer's policy.
  /// @throws ConfigError when the Trainer is made: it matches no part, with a list of the names.
  Policy& keep_fp32(const std::string& pattern) & {
    islands_->add(pattern);
    return static_cast<Policy&>(*this);
  }
  Policy&& keep_fp32(const std::string& pattern) && { return std::move(keep_fp32(pattern)); }
  const Fp32Islands& islands() const { return *islands_; }

  AutocastPass scope(c10::DeviceType device) const { return {device, Policy::dtype, *islands_}; }
  void attach(const torch::nn::Module& model, c10::Device) const { islands_->attach(model); }
  void after_window() const { islands_->warn_of_unmarked(); }

 private:
  // Shared, because a mark scope points to it while the policy may be moved.
  std::shared_ptr<Fp32Islands> islands_ = std::make_shared<Fp32Islands>();
};

}  // namespace detail

/// Matrix products and convolutions in bfloat16 by autocast, parameters and optimizer in their own dtype. bfloat16 has
/// the range of float32, so no gradient scaling is needed. Without hardware support (AVX512-BF16, AMX, a GPU since
/// Ampere) it is several times slower than Fp32.
class Bf16 : public detail::AutocastPolicy<Bf16> {
 public:
  static constexpr c10::ScalarType dtype = c10::ScalarType::BFloat16;
};
static_assert(PrecisionPolicy<Bf16> && !ScalesGradients<Bf16>);

/// Matrix products and convolutions in float16 by autocast, with a GradScaler: the root gradient of every backward is
/// multiplied by the scale, gradients are divided by it once a window, a window whose gradients hold an inf or NaN
/// changes nothing, and the scale follows. One scale a window, whatever the accumulation. A window without targets
/// leaves the scale as it was.
class Fp16 : public detail::AutocastPolicy<Fp16> {
 public:
  static constexpr c10::ScalarType dtype = c10::ScalarType::Half;

  explicit Fp16(const GradScalerOptions& options = {}) : scaler_(std::make_shared<GradScaler>(options)) {}

  /// The scaler, to be saved with the run or looked at.
  GradScaler& scaler() { return *scaler_; }

  void attach(const torch::nn::Module& model, c10::Device device) {
    AutocastPolicy::attach(model, device);
    device_ = device;
  }
  at::Tensor root_scale() const { return scaler_->scale_on(device_); }
  at::Tensor unscale(const std::vector<at::Tensor>& gradients) const { return scaler_->unscale(gradients); }
  void after_step(const at::Tensor& found_inf, const at::Tensor& idle) const { scaler_->update(found_inf, idle); }

 private:
  std::shared_ptr<GradScaler> scaler_;
  c10::Device device_ = c10::Device(c10::kCPU);
};
static_assert(PrecisionPolicy<Fp16> && ScalesGradients<Fp16>);

}  // namespace saturate
