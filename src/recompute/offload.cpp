// SPDX-License-Identifier: Apache-2.0
#include "saturate/recompute/offload.hpp"

#include "offload_places.hpp"
#include "saturate/error.hpp"
#include "saved_store.hpp"

#include <c10/util/StringUtil.h>

namespace saturate {
namespace {

std::unique_ptr<detail::SavedPlace> place_of(OffloadTo to) {
  if (to == OffloadTo::cpu_copy) return std::make_unique<detail::CpuCopy>();
  return std::make_unique<detail::PinnedHost>();
}

void require_device(OffloadTo to, c10::Device device) {
  if (to == OffloadTo::cpu_copy) {
    if (device.is_cpu()) return;
    throw ConfigError(
        "Offload: OffloadTo::cpu_copy stands for host memory where there is no GPU, and the model is on " +
        device.str() + "; use OffloadTo::pinned_host");
  }
  if (device.is_cuda()) return;
  throw ConfigError("Offload: the model is on " + device.str() +
                    (device.is_cpu() ? ", so the tensors that it saves for backward are in host memory already, and "
                                       "there is nothing to win; leave Offload out, or lower memory by st::Recompute "
                                       "(OffloadTo::cpu_copy goes through the motions, for tests)"
                                     : "; it moves tensors of CUDA devices only"));
}

}  // namespace

void OffloadOptions::validate() const {
  if (min_bytes < 0) throw ConfigError(c10::str("Offload: min_bytes is ", min_bytes, "; give 0 or more"));
  if (block_bytes < 1) throw ConfigError(c10::str("Offload: block_bytes is ", block_bytes, "; give 1 or more"));
}

Offload::Offload(const OffloadOptions& options) : options_(options) {
  options.validate();
  store_ = std::make_shared<detail::SavedStore>(
      detail::SavedStore::Settings{"Offload", options.min_bytes, options.block_bytes}, place_of(options.to));
}

void Offload::attach(const torch::nn::Module& model, c10::Device device) {
  require_device(options_.to, device);
  store_->attach(model);
}

SavedCounts Offload::counts() const { return store_->counts(); }

}  // namespace saturate
