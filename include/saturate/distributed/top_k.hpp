// SPDX-License-Identifier: Apache-2.0
// Sends the largest of a bucket's gradients, and their places (Aji, Heafield 2017).
//
//   st::Ddp(group, {.hook = std::make_shared<st::distributed::TopK>(st::distributed::TopKOptions{.fraction = 0.01})})
#pragma once

#include "saturate/distributed/error_feedback.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

namespace saturate::distributed {

struct TopKOptions {
  double fraction = 0.01;      ///< of a bucket's gradients; at least one is sent
  int64_t start_step = 0;      ///< windows before it are reduced whole
  bool error_feedback = true;  ///< without it small gradients never count

  /// @throws ConfigError a fraction outside (0, 1], a negative start_step.
  void validate() const;
};

/// Every rank sends the largest by magnitude of its gradients over the world size + residual; all are gathered and
/// added up in the order of ranks. What arrives grows with the world size: ranks * fraction of the gradients, with 4
/// bytes of index each. The sum is taken in float32 for gradients of 16 bits.
class TopK final : public ErrorFeedback {
 public:
  /// @throws ConfigError as validate.
  explicit TopK(TopKOptions options = {});
  ~TopK() override { wait(); }

  std::string name() const override { return "top_k"; }
  int64_t bytes_sent(const Bucket& bucket) const override;

 private:
  struct Message;
  bool compresses(const at::Tensor& parameter) const override { return parameter.numel() > 0; }
  Memory fresh(const at::Tensor& parameter) const override;
  Future start(std::shared_ptr<Job> job) override;

  Message message_of(int64_t gradients, c10::ScalarType dtype) const;
  at::Tensor take_largest(const Job& job, const at::Tensor& had) const;
  void add_up(const Job& job, const at::Tensor& gathered) const;

  TopKOptions options_;
};

}  // namespace saturate::distributed
