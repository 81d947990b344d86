// SPDX-License-Identifier: Apache-2.0
#include "saturate/averaging/ema.hpp"

#include "averager.hpp"
#include "module_device.hpp"
#include "saturate/error.hpp"

#include <c10/util/StringUtil.h>

namespace saturate {
namespace {

std::shared_ptr<detail::Averager> averager(const EmaOptions& options) {
  if (!(options.decay >= 0 && options.decay < 1)) {
    throw ConfigError(c10::str("Ema: decay is ", options.decay, "; give a value of 0 or more and below 1"));
  }
  if (options.every < 1) {
    throw ConfigError(c10::str("Ema: every is ", options.every, "; give 1 or more optimizer steps"));
  }
  return std::make_shared<detail::Averager>(detail::AveragingRule{.type = "Ema",
                                                                  .first = options.every,
                                                                  .every = options.every,
                                                                  .decay = options.decay,
                                                                  .warmup = options.warmup,
                                                                  .buffers = options.buffers,
                                                                  .evaluate = options.evaluate,
                                                                  .count_on_device = options.count_on_device});
}

}  // namespace

Ema::Ema(const EmaOptions& options) : AveragedWeights(averager(options)) {}
Ema::Ema(torch::nn::Module& module, const EmaOptions& options) : Ema(options) {
  attach(module, detail::device_of(module));
}

}  // namespace saturate
