// SPDX-License-Identifier: Apache-2.0
// Policies whose settings are values: a program that tries many combinations compiles one Trainer for all of them. In a
// program that knows what it wants, use the policies they stand for.
#pragma once

#include "saturate/accumulation/accumulate.hpp"
#include "saturate/clip/clip_grad_norm.hpp"
#include "saturate/memory_format/channels_last.hpp"
#include "saturate/policy.hpp"
#include "saturate/precision/precision.hpp"
#include "saturate/schedule/schedule.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace saturate::audit {

/// Fp32 or Bf16.
struct RuntimePrecision {
  using axis = saturate::axis::precision;
  bool bf16 = false;

  class Scope {
   public:
    Scope(bool on, c10::DeviceType device) {
      if (on) autocast_.emplace(device, c10::ScalarType::BFloat16);
    }

   private:
    std::optional<AutocastScope> autocast_;
  };
  Scope scope(c10::DeviceType device) const { return {bf16, device}; }
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

/// NoClip or ClipGradNorm.
struct RuntimeClip {
  using axis = saturate::axis::clipping;
  std::optional<double> max_norm;

  ClipResult clip(std::vector<at::Tensor>& gradients) const {
    return max_norm ? ClipGradNorm{*max_norm}.clip(gradients) : ClipResult{};
  }
  void validate() const {
    if (max_norm) ClipGradNorm{*max_norm}.validate();
  }
};
static_assert(ClippingPolicy<RuntimeClip>);

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
  bool bf16 = false;
  bool channels_last = false;
  bool fused_optimizer = true;  ///< saturate::optim::AdamW, else torch::optim::AdamW
  bool keep_pages = false;
  int64_t accumulate = 1;
  int64_t workers = 0;   ///< loader threads; 0: the training thread reads
  int64_t prefetch = 2;  ///< batches ahead
  int64_t threads = 0;   ///< intra-op threads; 0: LibTorch's default
  std::optional<double> clip;
  std::optional<WarmupCosine> cosine;

  /// Reads
  /// "bf16,channels_last,accumulate=4,prefetch=1,clip=1.0,warmup_cosine=100:5000,threads=2,keep_pages,torch_adamw".
  /// "" and "none" are the defaults. @throws ConfigError naming the word that is not known, and all that are.
  static PolicySettings parse(std::string_view text);
  /// The same text back, in a fixed order; "none" for the defaults.
  std::string to_string() const;
};

}  // namespace saturate::audit
