// SPDX-License-Identifier: Apache-2.0
#include "saturate/audit/runtime_policies.hpp"

#include "saturate/error.hpp"

#include <charconv>
#include <sstream>

namespace saturate::audit {
namespace {

constexpr const char* known =
    "tf32, bf16, fp16, channels_last, keep_pages, torch_adamw, accumulate=K, recompute=all, recompute=every-N, "
    "prefetch=WORKERS, threads=N, clip=MAX_NORM, clip_value=V, adaptive_clip=FACTOR, skip_spikes, "
    "warmup_cosine=WARMUP:TOTAL, ema=DECAY";

[[noreturn]] void refuse(std::string_view word, const std::string& why) {
  throw ConfigError("policies: '" + std::string(word) + "' " + why + "; known are " + known);
}

int64_t whole(std::string_view word, std::string_view text, int64_t least) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least) {
    refuse(word, "needs a whole number of at least " + std::to_string(least));
  }
  return value;
}

double positive(std::string_view word, std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value > 0)) refuse(word, "needs a number above 0");
  return value;
}

int64_t read_recompute(std::string_view word, std::string_view value) {
  if (value == "none") return 0;
  if (value == "all") return 1;
  if (!value.starts_with("every-")) refuse(word, "needs all, every-N or none");
  return whole(word, value.substr(6), 1);
}

constexpr std::pair<const char*, Precision> precisions[] = {
    {"tf32", Precision::tf32}, {"bf16", Precision::bf16}, {"fp16", Precision::fp16}};

std::optional<Precision> precision_named(std::string_view name) {
  for (const auto& [text, precision] : precisions) {
    if (name == text) return precision;
  }
  return std::nullopt;
}

void read_word(PolicySettings& settings, std::string_view word) {
  const std::size_t equals = word.find('=');
  const std::string_view name = word.substr(0, equals);
  const std::string_view value = equals == std::string_view::npos ? std::string_view() : word.substr(equals + 1);
  const bool flag = equals == std::string_view::npos;
  if (flag && precision_named(name)) {
    if (settings.precision != Precision::fp32) refuse(word, "is a second precision");
    settings.precision = *precision_named(name);
  } else if (flag && name == "skip_spikes") {
    settings.clip.skip_spikes = true;
  } else if (flag && name == "channels_last") {
    settings.channels_last = true;
  } else if (flag && name == "keep_pages") {
    settings.keep_pages = true;
  } else if (flag && name == "torch_adamw") {
    settings.fused_optimizer = false;
  } else if (name == "accumulate") {
    settings.accumulate = whole(word, value, 1);
  } else if (name == "recompute") {
    settings.recompute_every = read_recompute(word, value);
  } else if (name == "prefetch") {
    settings.workers = whole(word, value, 0);
  } else if (name == "threads") {
    settings.threads = whole(word, value, 1);
  } else if (name == "clip") {
    settings.clip.max_norm = positive(word, value);
  } else if (name == "clip_value") {
    settings.clip.max_value = positive(word, value);
  } else if (name == "adaptive_clip") {
    settings.clip.adaptive_factor = positive(word, value);
  } else if (name == "ema") {
    settings.ema = EmaOptions{.decay = positive(word, value)};
    Ema{*settings.ema};  // refuses what cannot work
  } else if (name == "warmup_cosine") {
    const std::size_t colon = value.find(':');
    if (colon == std::string_view::npos) refuse(word, "needs WARMUP:TOTAL");
    settings.cosine = WarmupCosine{.warmup = whole(word, value.substr(0, colon), 0),
                                   .total = whole(word, value.substr(colon + 1), 1)};
    settings.cosine->validate();
  } else {
    refuse(word, "is not known");
  }
}

}  // namespace

RuntimePrecision::RuntimePrecision(Precision precision, const GradScalerOptions& scaler) : precision_(precision) {
  if (precision == Precision::fp16) fp16_.emplace(scaler);
}

RuntimePrecision::Scope::Scope(Precision precision, c10::DeviceType device) {
  if (precision == Precision::bf16) autocast_.emplace(device, c10::ScalarType::BFloat16);
  if (precision == Precision::fp16) autocast_.emplace(device, c10::ScalarType::Half);
}

void RuntimePrecision::attach(torch::nn::Module& model, c10::Device device) {
  if (fp16_) fp16_->attach(model, device);
}

RuntimeClip::RuntimeClip(const ClipSettings& settings) : clip_{settings} {
  const int ways =
      settings.max_norm.has_value() + settings.max_value.has_value() + settings.adaptive_factor.has_value();
  if (ways > 1) throw ConfigError("policies: several ways of clipping; keep one of clip, clip_value, adaptive_clip");
  if (settings.max_norm) ClipGradNorm{*settings.max_norm}.validate();
  if (settings.max_value) ClipGradValue{*settings.max_value}.validate();
  if (settings.adaptive_factor) AdaptiveGradClip{*settings.adaptive_factor}.validate();
  if (settings.skip_spikes) spikes_.emplace(settings.spikes, clip_);
}

ClipResult RuntimeClip::Inner::clip(std::vector<at::Tensor>& gradients, const ClipContext& context) const {
  if (settings.max_norm) return ClipGradNorm{*settings.max_norm}.clip(gradients);
  if (settings.max_value) return ClipGradValue{*settings.max_value}.clip(gradients);
  if (settings.adaptive_factor) return AdaptiveGradClip{*settings.adaptive_factor}.clip(gradients, context);
  return {};
}

PolicySettings PolicySettings::parse(std::string_view text) {
  PolicySettings settings;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view word = text.substr(0, comma);
    if (word != "none" && !word.empty()) read_word(settings, word);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
  }
  return settings;
}

std::string PolicySettings::to_string() const {
  std::ostringstream out;
  const auto add = [&](const auto&... parts) {
    if (out.tellp() > 0) out << ',';
    (out << ... << parts);
  };
  for (const auto& [text, named] : precisions) {
    if (precision == named) add(text);
  }
  if (channels_last) add("channels_last");
  if (keep_pages) add("keep_pages");
  if (!fused_optimizer) add("torch_adamw");
  if (accumulate != 1) add("accumulate=", accumulate);
  if (recompute_every == 1) add("recompute=all");
  if (recompute_every > 1) add("recompute=every-", recompute_every);
  if (workers != 0) add("prefetch=", workers);
  if (threads != 0) add("threads=", threads);
  if (clip.max_norm) add("clip=", *clip.max_norm);
  if (clip.max_value) add("clip_value=", *clip.max_value);
  if (clip.adaptive_factor) add("adaptive_clip=", *clip.adaptive_factor);
  if (clip.skip_spikes) add("skip_spikes");
  if (cosine) add("warmup_cosine=", cosine->warmup, ":", cosine->total);
  if (ema) add("ema=", ema->decay);
  return out.tellp() > 0 ? out.str() : "none";
}

}  // namespace saturate::audit
