// SPDX-License-Identifier: Apache-2.0
#include "saturate/distributed/compress.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

namespace saturate::distributed {
namespace {

/// What every rank may send without the sum overflowing: each of its additions may round up.
double largest_half_of(int ranks) { return 65504.0 / (ranks * std::pow(1 + std::ldexp(1.0, -11), ranks)); }

}  // namespace

int64_t CastHook::bytes_sent(const Bucket& bucket) const {
  return bucket.gradients.numel() * std::min<int64_t>(bucket.gradients.element_size(), 2);
}

at::Tensor CastHook::narrow(const at::Tensor& share) { return share.to(dtype_); }

CommHook::Future CastHook::reduce(Bucket& bucket, double divisor) {
  const at::NoGradGuard no_grad;
  const at::Tensor gradients = bucket.gradients;
  const double world = group().world_size();
  gradients.div_(world);
  const at::Tensor had = measures() ? gradients.clone() : at::Tensor();
  const bool narrow_already = gradients.element_size() <= 2 && gradients.scalar_type() != dtype_;
  const at::Tensor sent = narrow_already ? gradients : narrow(gradients);
  if (measures()) note_error(bucket.index, {had}, {had - sent});
  return all_reduce(sent)->then(
      [gradients, sent, factor = world / divisor](c10::ivalue::Future& done) {
        done.value();  // throws what went wrong
        const at::NoGradGuard no_grad;
        if (!gradients.is_same(sent)) gradients.copy_(sent);
        if (factor != 1) gradients.mul_(factor);
        return c10::IValue(gradients);
      },
      c10::TensorType::get());
}

at::Tensor Fp16Compress::narrow(const at::Tensor& share) {
  if (share.numel() == 0) return share.to(at::kHalf);
  const double limit = largest_half_of(group().world_size());
  const auto [lowest, highest] = at::aminmax(share);
  const at::Tensor largest = at::maximum(highest, -lowest);
  if (!saturated_.defined()) saturated_ = at::zeros({}, share.options().dtype(at::kLong));
  saturated_ += (largest > limit).logical_and_(largest.isfinite());
  const at::Tensor sent = share.to(at::kHalf).clamp_(-limit, limit);  // what did not fit was inf in between
  // 0 where all is finite, else NaN: clamping must not hide an inf.
  sent[0].add_((highest * 0 + lowest * 0).to(at::kHalf));
  return sent;
}

int64_t Fp16Compress::saturated_buckets() const { return saturated_.defined() ? saturated_.item<int64_t>() : 0; }

}  // namespace saturate::distributed
