// SPDX-License-Identifier: Apache-2.0
#include "saturate/audit/runtime_policies.hpp"

#include "saturate/error.hpp"

#include <charconv>
#include <sstream>

namespace saturate::audit {
namespace {

constexpr const char* known =
    "bf16, channels_last, keep_pages, torch_adamw, accumulate=K, prefetch=WORKERS, threads=N, clip=MAX_NORM, "
    "warmup_cosine=WARMUP:TOTAL";

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

void read_word(PolicySettings& settings, std::string_view word) {
  const std::size_t equals = word.find('=');
  const std::string_view name = word.substr(0, equals);
  const std::string_view value = equals == std::string_view::npos ? std::string_view() : word.substr(equals + 1);
  const bool flag = equals == std::string_view::npos;
  if (flag && name == "bf16") {
    settings.bf16 = true;
  } else if (flag && name == "channels_last") {
    settings.channels_last = true;
  } else if (flag && name == "keep_pages") {
    settings.keep_pages = true;
  } else if (flag && name == "torch_adamw") {
    settings.fused_optimizer = false;
  } else if (name == "accumulate") {
    settings.accumulate = whole(word, value, 1);
  } else if (name == "prefetch") {
    settings.workers = whole(word, value, 0);
  } else if (name == "threads") {
    settings.threads = whole(word, value, 1);
  } else if (name == "clip") {
    settings.clip = positive(word, value);
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
  if (bf16) add("bf16");
  if (channels_last) add("channels_last");
  if (keep_pages) add("keep_pages");
  if (!fused_optimizer) add("torch_adamw");
  if (accumulate != 1) add("accumulate=", accumulate);
  if (workers != 0) add("prefetch=", workers);
  if (threads != 0) add("threads=", threads);
  if (clip) add("clip=", *clip);
  if (cosine) add("warmup_cosine=", cosine->warmup, ":", cosine->total);
  return out.tellp() > 0 ? out.str() : "none";
}

}  // namespace saturate::audit
