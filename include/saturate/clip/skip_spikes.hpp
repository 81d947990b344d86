// SPDX-License-Identifier: Apache-2.0
// Skips the steps of windows whose loss or gradient norm stands far above the recent ones, as a bad batch makes them:
//
//   st::SkipSpikes{{.z_score = 6}, st::ClipGradNorm{1.0}}   // and clips those that are taken
#pragma once

#include "saturate/clip/clip_grad_norm.hpp"
#include "saturate/policy.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace saturate {

struct LogEvent;

struct SpikeOptions {
  double z_score = 6;              ///< standard deviations above the mean that make a spike
  int64_t window = 100;            ///< taken steps that mean and deviation are of
  int64_t warmup = 20;             ///< taken steps before anything is judged
  int64_t max_consecutive = 10;    ///< then the level has changed for good, and steps are taken again
  double min_relative_std = 0.01;  ///< floor of the deviation, as a share of the mean: a flat loss makes no spikes

  /// @throws ConfigError z_score not above 0, window below 2, warmup outside [2, window], max_consecutive below 1.
  void validate() const;
};

struct SkippedStep {
  int64_t window = 0;  ///< windows seen before it
  double loss = 0, grad_norm = 0;
  double loss_z = 0, norm_z = 0;  ///< their z-scores
};

namespace detail {

/// The statistics, on the device; the host reads them only for skipped().
class SpikeDetector {
 public:
  explicit SpikeDetector(const SpikeOptions& options) : options_(options) {}

  /// 0-dim float32, 1: a spike.
  at::Tensor judge(const at::Tensor& loss, const at::Tensor& norm);
  /// Takes the window last judged into the statistics, unless its step was refused.
  void after_step(const at::Tensor& refused);
  /// Waits for the device.
  const std::vector<SkippedStep>& skipped();

 private:
  void start(c10::Device device);

  SpikeOptions options_;
  at::Tensor recent_;             // [2, window] float64: loss and norm of the last taken steps
  at::Tensor taken_;              // 0-dim int64
  at::Tensor consecutive_;        // 0-dim int64: spikes in a row
  at::Tensor place_;              // [window] int64: 0, 1, ...
  at::Tensor mask_, scratch_;     // [window] bool, [2, window] float64: kept, so that a step allocates numbers only
  at::Tensor value_, z_, spike_;  // of the window last judged
  int64_t windows_ = 0;
  std::vector<at::Tensor> unread_;  // [6] float64 each
  std::vector<SkippedStep> skipped_;
};

}  // namespace detail

/// On the clipping axis; the second argument is what clips besides.
template <class Then = NoClip>
class SkipSpikes {
 public:
  using axis = saturate::axis::clipping;

  explicit SkipSpikes(const SpikeOptions& options = {}, Then then = {})
      : options_(options), then_(std::move(then)), detector_(std::make_shared<detail::SpikeDetector>(options)) {}

  ClipResult clip(std::vector<at::Tensor>& gradients, const ClipContext& context) {
    ClipResult result = then(gradients, context);
    if (!result.norm.defined()) result.norm = grad_norm(gradients);
    const at::Tensor spike = detector_->judge(context.mean_loss(), result.norm);
    result.refused = result.refused.defined() ? result.refused.maximum(spike) : spike;
    return result;
  }
  void after_step(const at::Tensor& refused) { detector_->after_step(refused); }
  /// Every step that was skipped as a spike, so far; waits for the device.
  const std::vector<SkippedStep>& skipped() const { return detector_->skipped(); }
  /// Brings the record up to date where the host reads anyway.
  void on_log(const LogEvent&) { detector_->skipped(); }
  void validate() const {
    options_.validate();
    if constexpr (requires { then_.validate(); }) then_.validate();
  }

 private:
  ClipResult then(std::vector<at::Tensor>& gradients, const ClipContext& context) {
    if constexpr (requires { then_.clip(gradients, context); }) {
      return then_.clip(gradients, context);
    } else {
      return then_.clip(gradients);
    }
  }

  SpikeOptions options_;
  Then then_;
  std::shared_ptr<detail::SpikeDetector> detector_;
};
static_assert(ClippingPolicy<SkipSpikes<>>);

}  // namespace saturate
