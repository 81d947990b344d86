// SPDX-License-Identifier: Apache-2.0
#include "saturate/averaging/swa.hpp"

#include "averager.hpp"
#include "module_device.hpp"
#include "saturate/error.hpp"

#include <c10/util/StringUtil.h>

namespace saturate {
namespace {

std::shared_ptr<detail::Averager> averager(const SwaOptions& options) {
  for (const auto& [name, value] : {std::pair("start", options.start), std::pair("every", options.every)}) {
    if (value < 1) throw ConfigError(c10::str("Swa: ", name, " is ", value, "; give 1 or more optimizer steps"));
  }
  return std::make_shared<detail::Averager>(detail::AveragingRule{.type = "Swa",
                                                                  .first = options.start,
                                                                  .every = options.every,
                                                                  .decay = {},
                                                                  .warmup = false,
                                                                  .buffers = options.buffers,
                                                                  .evaluate = options.evaluate,
                                                                  .count_on_device = options.count_on_device});
}

}  // namespace

Swa::Swa(const SwaOptions& options) : AveragedWeights(averager(options)) {}
Swa::Swa(torch::nn::Module& module, const SwaOptions& options) : Swa(options) {
  attach(module, detail::device_of(module));
}

}  // namespace saturate
