// SPDX-License-Identifier: Apache-2.0
// Policies whose settings are values: a program that tries many combinations compiles one Trainer for all of them. In a
// program that knows what it wants, use the policies they stand for.
#pragma once

#include "saturate/accumulation/accumulate.hpp"
#include "saturate/averaging/ema.hpp"
#include "saturate/clip/clip_grad_norm.hpp"
#include "saturate/clip/skip_spikes.hpp"
#include "saturate/memory_format/channels_last.hpp"
#include "saturate/policy.hpp"
#include "saturate/precision/precision.hpp"
#include "saturate/recompute/policy.hpp"
#include "saturate/schedule/schedule.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace saturate::audit {

enum class Precision { fp32, tf32, bf16, fp16 };

/// Fp32, Tf32, Bf16 or Fp16.
class RuntimePrecision {
 public:
  using axis = saturate::axis::precision;

  explicit RuntimePrecision(Precision precision = Precision::fp32, const GradScalerOptions& scaler = {});

  class Scope {
   public:
    Scope(Precision precision, c10::DeviceType device);

   private:
    std::optional<AutocastScope> autocast_;
  };
  class WindowScope {
   public:
    explicit WindowScope(Precision precision) {
      if (precision == Precision::tf32) tf32_.emplace();
    }

   private:
    std::optional<Tf32Scope> tf32_;
  };
  Scope scope(c10::DeviceType device) const { return {precision_, device}; }
  WindowScope window_scope() const { return WindowScope(precision_); }
  void attach(torch::nn::Module& model, c10::Device device);
  // Undefined without a scaler.
  at::Tensor root_scale() const { return fp16_ ? fp16_->root_scale() : at::Tensor(); }
  at::Tensor unscale(const std::vector<at::Tensor>& gradients) const {
    return fp16_ ? fp16_->unscale(gradients) : at::Tensor();
  }
  void after_step(const at::Tensor& found_inf, const at::Tensor& idle) const {
    if (fp16_) fp16_->after_step(found_inf, idle);
  }

 private:
  Precision precision_;
  std::optional<Fp16> fp16_;
};
static_assert(PrecisionPolicy<RuntimePrecision>);

/// KeepFormat or ChannelsLast.
struct RuntimeMemoryFormat {
  using axis = saturate::axis::memory_format;
  bool channels_last = false;

  void convert(torch::nn::Module& module) const {
    if (channels_last) ChannelsLast{}.convert(module);
  }
  at::Tensor input(const at::Tensor& tensor) const { return channels_last ? ChannelsLast{}.input(tensor) : tensor; }
};
static_assert(MemoryFormatPolicy<RuntimeMemoryFormat>);

/// NoRecompute, Recompute::all() or Recompute::every(n).
class RuntimeRecompute {
 public:
  using axis = saturate::axis::recompute;

  /// @param every 0: nothing is recomputed; 1: every marked part; n: every n-th. @throws ConfigError it is negative.
  explicit RuntimeRecompute(int64_t every = 0) {
    if (every != 0) recompute_ = Recompute::every(every);
  }

  class Scope {
   public:
    explicit Scope(const std::optional<Recompute>& recompute) {
      if (recompute) pass_.emplace(*recompute);
    }

   private:
    struct Pass {  // what scope() gives cannot be moved, so it is made in its place
      explicit Pass(const Recompute& recompute) : pass(recompute.scope()) {}
      decltype(std::declval<const Recompute&>().scope()) pass;
    };
    std::optional<Pass> pass_;
  };
  Scope scope() const { return Scope(recompute_); }
  void attach(const torch::nn::Module& model, c10::Device device) {
    if (recompute_) recompute_->attach(model, device);
  }

 private:
  std::optional<Recompute> recompute_;
};
static_assert(RecomputePolicy<RuntimeRecompute>);

struct ClipSettings {
  std::optional<double> max_norm, max_value, adaptive_factor;
  bool skip_spikes = false;
  SpikeOptions spikes = {};
};

/// NoClip, ClipGradNorm, ClipGradValue or AdaptiveGradClip, behind SkipSpikes or not.
class RuntimeClip {
 public:
  using axis = saturate::axis::clipping;

  RuntimeClip() = default;
  /// @throws ConfigError more than one way of clipping.
  explicit RuntimeClip(const ClipSettings& settings);

  ClipResult clip(std::vector<at::Tensor>& gradients, const ClipContext& context) {
    return spikes_ ? spikes_->clip(gradients, context) : clip_.clip(gradients, context);
  }
  void after_step(const at::Tensor& refused) {
    if (spikes_) spikes_->after_step(refused);
  }

 private:
  struct Inner {
    using axis = saturate::axis::clipping;
    ClipSettings settings;
    ClipResult clip(std::vector<at::Tensor>& gradients, const ClipContext& context) const;
  };
  Inner clip_;
  std::optional<SkipSpikes<Inner>> spikes_;
};
static_assert(ClippingPolicy<RuntimeClip>);

/// NoAverage or Ema.
class RuntimeAverage {
 public:
  using axis = saturate::axis::averaging;

  RuntimeAverage() = default;
  explicit RuntimeAverage(std::optional<EmaOptions> options) {
    if (options) ema_.emplace(*options);
  }
  void attach(torch::nn::Module& model, c10::Device device) {
    if (ema_) ema_->attach(model, device);
  }
  void update(const at::Tensor& refused) {
    if (ema_) ema_->update(refused);
  }
  std::optional<Ema>& ema() { return ema_; }

 private:
  std::optional<Ema> ema_;
};
static_assert(AveragingPolicy<RuntimeAverage>);

/// ConstantLr or WarmupCosine.
struct RuntimeSchedule {
  using axis = saturate::axis::schedule;
  std::optional<WarmupCosine> cosine;

  double factor(int64_t step) const { return cosine ? cosine->factor(step) : 1.0; }
  void validate() const {
    if (cosine) cosine->validate();
  }
};
static_assert(SchedulePolicy<RuntimeSchedule>);

/// A whole combination, as the programs take it on their command lines.
struct PolicySettings {
  Precision precision = Precision::fp32;
  bool channels_last = false;
  bool fused_optimizer = true;  ///< saturate::optim::AdamW, else torch::optim::AdamW
  bool keep_pages = false;
  int64_t accumulate = 1;
  int64_t recompute_every = 0;  ///< every n-th marked part is recomputed; 1: all of them; 0: none
  int64_t workers = 0;          ///< loader threads; 0: the training thread reads
  int64_t prefetch = 4;         ///< batches ahead
  int64_t threads = 0;          ///< intra-op threads; 0: LibTorch's default
  ClipSettings clip;
  std::optional<WarmupCosine> cosine;
  std::optional<EmaOptions> ema;

  /// Reads "bf16,channels_last,accumulate=4,recompute=every-2,prefetch=1,clip=1.0,warmup_cosine=100:5000,ema=0.999" and
  /// the like; "" and "none" are the defaults. @throws ConfigError naming the word that is not known, and all that are.
  static PolicySettings parse(std::string_view text);
  /// The same text back, in a fixed order; "none" for the defaults.
  std::string to_string() const;
};

}  // namespace saturate::audit
