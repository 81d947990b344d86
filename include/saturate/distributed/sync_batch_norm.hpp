// SPDX-License-Identifier: Apache-2.0
// BatchNorm over the batches of all ranks.
//
//   torch::nn::Sequential net(torch::nn::Conv2d(...), torch::nn::BatchNorm2d(64), ...);
//   st::distributed::convert_sync_batch_norm(*net, group);        // before the optimizer and the Trainer see the model
//
// A BatchNorm that a module holds in a member of its own (torch::nn::BatchNorm2d norm) cannot be exchanged from
// outside: its type is compiled into the module's forward. There the member is declared as what it is to be:
//
//   st::distributed::SyncBatchNorm norm{nullptr};
//   norm = register_module("norm", st::distributed::SyncBatchNorm(64));      // convert_sync_batch_norm gives it the
//   group
#pragma once

#include "saturate/distributed/process_group.hpp"

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/batchnorm.h>

#include <cstdint>
#include <iosfwd>
#include <optional>

namespace saturate::distributed {

/// torch.nn.SyncBatchNorm: in training mode mean and variance are those of all ranks' batches together, which may
/// differ in size or be empty, and gradients flow through them. In eval mode it is BatchNorm. Parameters, buffers and
/// their names are BatchNorm's, so that a checkpoint of one loads into the other. Running statistics are the same on
/// all ranks.
///
/// Every rank runs as many training forward and backward passes, in the same order: one all_gather of 2 C + 1 numbers a
/// forward, one all_reduce of 2 C a backward, on a group of its own. Statistics are computed in float32 (float64 for
/// float64 input).
class SyncBatchNormImpl : public torch::nn::NormImplBase<0, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
 public:
  /// Waits for convert_sync_batch_norm or synchronize_over to give it a group.
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& options) : NormImplBase(options) {}
  /// @param group one that nothing else uses at the same time: ProcessGroup::another().
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, ProcessGroup group);

  /// @param input [N, C, ...], C = num_features; float16, bfloat16, float32 or float64. @return the same shape, dtype
  /// and memory format.
  /// @throws ConfigError another shape, or one value a channel over all ranks (no variance).
  /// @throws StateError in training mode without a group, or when its backward is differentiated.
  /// @throws DistributedError the other ranks do not come by within the timeout.
  at::Tensor forward(const at::Tensor& input);

  /// Called by every rank. With a group of one process this is BatchNorm.
  void synchronize_over(ProcessGroup group) { group_ = std::move(group); }
  const std::optional<ProcessGroup>& group() const { return group_; }
  /// From now on training forwards are of this rank's batch, and wait for nobody; false: of all ranks' again.
  void normalize_alone(bool alone) { alone_ = alone; }
  void pretty_print(std::ostream& stream) const override;

 protected:
  void _check_input_dim(const at::Tensor& input) override;

 private:
  template <class Norm>
  friend std::shared_ptr<SyncBatchNormImpl> synced_in_place_of(const Norm& norm);
  double average_factor();
  at::Tensor synced(const at::Tensor& input);
  void update_statistics(const at::Tensor& mean, const at::Tensor& unbiased_variance);

  std::optional<ProcessGroup> group_;
  bool alone_ = false;
};
TORCH_MODULE(SyncBatchNorm);

/// Puts a SyncBatchNorm in the place of every BatchNorm1d, 2d and 3d in a torch::nn::Sequential, with the same
/// parameter tensors and the buffers' memory, and gives every SyncBatchNorm of the model a new group over these ranks.
/// Handles to the replaced modules stay behind. Called by every rank, before marks, a Trainer or Ema have taken down
/// the model.
/// @return SyncBatchNorm layers that the model has now.
/// @throws ConfigError a BatchNorm outside a Sequential, which cannot be exchanged; all of them are named, and nothing
/// has been changed.
int64_t convert_sync_batch_norm(torch::nn::Module& module, const ProcessGroup& group);

/// Whether a training forward of the model waits for other ranks.
bool has_sync_batch_norm(const torch::nn::Module& module);

/// SyncBatchNormImpl::normalize_alone of every layer.
void normalize_alone(torch::nn::Module& module, bool alone);

}  // namespace saturate::distributed
