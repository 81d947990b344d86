// SPDX-License-Identifier: Apache-2.0
// Communication hooks that send half the bytes: gradients are rounded to 16 bits, added up in 16 bits, and widened.
#pragma once

#include "saturate/distributed/comm_hook.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>

namespace saturate::distributed {

/// Gradients are divided by the world size first, so that the sum fits. Those of 16 bits already are sent as they are.
class CastHook : public CommHook {
 public:
  explicit CastHook(c10::ScalarType dtype) : dtype_(dtype) {}
  Future reduce(Bucket& bucket, double divisor) override;
  int64_t bytes_sent(const Bucket& bucket) const override;

 protected:
  /// `share` holds this rank's gradients over the world size, and may be written to. @return what is sent.
  virtual at::Tensor narrow(const at::Tensor& share);
  /// The same of gradients that are to be multiplied by `factor` on the way; dense float32 on the CPU.
  virtual at::Tensor narrow_in_one_pass(const at::Tensor& gradients, double factor);

 private:
  c10::ScalarType dtype_;
};

/// float16, relative error 2^-11. A finite gradient too large for a sum over all ranks to fit for certain (about 65504:
/// 65504 / (1 + 2^-11)^ranks) is sent as that, with its sign, and its bucket is counted. A bucket that holds an inf or
/// NaN reaches every rank with a NaN in it, so that all of them skip the step.
class Fp16Compress final : public CastHook {
 public:
  Fp16Compress() : CastHook(c10::ScalarType::Half) {}
  std::string name() const override { return "fp16_compress"; }
  /// Buckets on this rank that held a finite gradient which did not fit; waits for the device.
  int64_t saturated_buckets() const;

 protected:
  at::Tensor narrow(const at::Tensor& share) override;
  at::Tensor narrow_in_one_pass(const at::Tensor& gradients, double factor) override;

 private:
  void count_saturated(const at::Tensor& one);
  at::Tensor saturated_;  // 0-dim, on the device
};

/// bfloat16: the range of float32, relative error 2^-8.
class Bf16Compress final : public CastHook {
 public:
  Bf16Compress() : CastHook(c10::ScalarType::BFloat16) {}
  std::string name() const override { return "bf16_compress"; }
};

}  // namespace saturate::distributed
