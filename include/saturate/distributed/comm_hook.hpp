// SPDX-License-Identifier: Apache-2.0
// What is sent of a bucket of gradients, and what comes back: the communication hooks of data parallelism.
#pragma once

#include "saturate/distributed/process_group.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <string>
#include <vector>

namespace saturate::distributed {

/// A bucket of gradients, ready to be reduced.
struct Bucket {
  at::Tensor gradients;                ///< [n], flat; may be written to
  std::size_t index = 0;               ///< of this step's buckets; they come in this order
  bool last = false;                   ///< of the step
  std::vector<at::Tensor> parameters;  ///< whose gradients lie in it, in this order
  std::vector<at::Tensor> views;       ///< of `gradients`, one for each parameter, in its shape
};

/// Reduces buckets. One object belongs to one DistributedDataParallel.
class CommHook {
 public:
  virtual ~CommHook() = default;

  /// Starts the reduction and returns at once. @return a future of the reduced tensor: [n], like bucket.gradients,
  /// which it may be. `divisor`: what the sum over ranks is to be divided by (the world size, for a mean; or 1).
  virtual c10::intrusive_ptr<c10::ivalue::Future> reduce(Bucket& bucket, double divisor) = 0;

  /// Called once, by every rank, before the first bucket.
  virtual void attach(const ProcessGroup& group) { group_ = group; }
  /// "fp16_compress"
  virtual std::string name() const = 0;
  /// Bytes that a rank hands to all_reduce for a bucket.
  virtual int64_t bytes_sent(const Bucket& bucket) const { return static_cast<int64_t>(bucket.gradients.nbytes()); }

 protected:
  const ProcessGroup& group() const { return group_; }
  /// The future of an all_reduce of `tensor` in place.
  c10::intrusive_ptr<c10::ivalue::Future> all_reduce(const at::Tensor& tensor) const;

 private:
  ProcessGroup group_;
};

/// Sends gradients as they are.
class AllReduce : public CommHook {
 public:
  c10::intrusive_ptr<c10::ivalue::Future> reduce(Bucket& bucket, double divisor) override;
  std::string name() const override { return "all_reduce"; }
};

}  // namespace saturate::distributed
