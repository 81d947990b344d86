// SPDX-License-Identifier: Apache-2.0
// PowerSGD (Vogels, Karimireddy, Jaggi 2019): a gradient [n, m] goes over the wire as two factors [n, r] and [m, r].
//
//   st::Ddp(group, {.hook = std::make_shared<st::distributed::PowerSgd>(st::distributed::PowerSgdOptions{.rank = 4})})
#pragma once

#include "saturate/distributed/error_feedback.hpp"
#include "saturate/distributed/process_group.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

namespace saturate::distributed {

struct PowerSgdOptions {
  int64_t rank = 4;  ///< r
  /// Windows before it are reduced whole: early gradients change too fast for a subspace to follow.
  int64_t start_step = 1000;
  /// A parameter is compressed when its factors have fewer bytes by more than this factor; others are sent whole.
  double min_compression_rate = 2;
  bool error_feedback = true;  ///< without it the gradients are biased
  /// The subspace of the last window is where the next one's power iteration starts.
  bool warm_start = true;
  uint64_t seed = 0;  ///< of the first subspace; the same on all ranks

  /// @throws ConfigError a rank or start_step that is too small, a rate that is not positive.
  void validate() const;
};

/// One power iteration a window: with M_i = gradients of rank i over the world size + its residual,
///   P = orthonormal columns of sum(M_i Q),  Q_i = M_i^T P,  reduced: P sum(Q_i)^T,  residual: M_i - P Q_i^T,
/// so that reduced + residuals = gradients, whatever P is. Two all-reduces a bucket; the second is started by the first
/// one's completion, on a group of its own, or ranks would start them in different orders.
///
/// The matrix of a parameter: rows are its dimension with the largest stride (the output channels of a convolution,
/// channels_last or not). Parameters of 16 bits are compressed in float32; tensors without a saving (biases) travel
/// with the first all-reduce.
class PowerSgd final : public ErrorFeedback {
 public:
  /// @throws ConfigError as validate.
  explicit PowerSgd(PowerSgdOptions options = {});
  ~PowerSgd() override { wait(); }

  void attach(const ProcessGroup& group) override;
  std::string name() const override { return "power_sgd"; }
  int64_t bytes_sent(const Bucket& bucket) const override;

 private:
  struct Factors;
  struct Work;
  bool compresses(const at::Tensor& parameter) const override;
  Memory fresh(const at::Tensor& parameter) const override;
  Future start(std::shared_ptr<Job> job) override;

  at::Tensor random_q(int64_t columns, int64_t rank, int64_t window, const at::TensorOptions& options) const;
  void lay_out(Work& work) const;
  void project(Work& work) const;
  void multiply(Work& work) const;

  PowerSgdOptions options_;
  ProcessGroup p_group_, q_group_;
};

}  // namespace saturate::distributed
