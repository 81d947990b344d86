// SPDX-License-Identifier: Apache-2.0
#include "saturate/averaging/update_batch_norm.hpp"

#include "module_device.hpp"
#include "saturate/distributed/sync_batch_norm.hpp"
#include "saturate/error.hpp"

#include <torch/nn/modules/batchnorm.h>

namespace saturate::detail {
namespace {

// Calls `use` with the module as what it is, when that is a BatchNorm.
template <class Use>
void as_batch_norm(torch::nn::Module& module, Use&& use) {
  if (auto* norm = module.as<torch::nn::BatchNorm1dImpl>()) return use(*norm);
  if (auto* norm = module.as<torch::nn::BatchNorm2dImpl>()) return use(*norm);
  if (auto* norm = module.as<torch::nn::BatchNorm3dImpl>()) return use(*norm);
  if (auto* norm = module.as<distributed::SyncBatchNormImpl>()) return use(*norm);
}

}  // namespace

BatchNormUpdate::BatchNormUpdate(torch::nn::Module& module) : train_(module, true), device_(device_of(module)) {
  for (const auto& part : module.modules()) {
    as_batch_norm(*part, [&](auto& norm) {
      if (!norm.options.track_running_stats()) return;
      Norm kept{part, norm.options.momentum(), {}};
      for (const at::Tensor& buffer : norm.buffers()) kept.statistics.push_back(buffer.clone());
      norms_.push_back(std::move(kept));
      norm.reset_running_stats();
      norm.options.momentum(std::nullopt);  // the mean over all batches
    });
  }
}

BatchNormUpdate::~BatchNormUpdate() {
  for (const Norm& kept : norms_) {
    as_batch_norm(*kept.module, [&](auto& norm) {
      norm.options.momentum(kept.momentum);
      if (finished_) return;
      auto buffers = norm.buffers();
      for (std::size_t i = 0; i < buffers.size(); ++i) buffers[i].copy_(kept.statistics[i]);
    });
  }
}

void BatchNormUpdate::finish(int64_t batches) {
  if (batches == 0) {
    throw DataError("update_batch_norm: the loader gave no batch, so there is nothing to compute statistics from");
  }
  finished_ = true;
}

}  // namespace saturate::detail
