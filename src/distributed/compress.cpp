// SPDX-License-Identifier: Apache-2.0
#include "saturate/distributed/compress.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Stream.h>

namespace saturate::distributed {
namespace {
constexpr double largest_half = 65504;
}

int64_t CastHook::bytes_sent(const Bucket& bucket) const {
  return bucket.gradients.numel() * std::min<int64_t>(bucket.gradients.element_size(), 2);
}

at::Tensor CastHook::narrow(const at::Tensor& share) { return share.to(dtype_); }

c10::intrusive_ptr<c10::ivalue::Future> CastHook::reduce(Bucket& bucket, double divisor) {
  const at::NoGradGuard no_grad;
  at::Tensor gradients = bucket.gradients;
  const double world = group().world_size();
  gradients.div_(world);
  if (gradients.element_size() <= 2) {
    return all_reduce(gradients)->then(
        [gradients, factor = world / divisor](c10::ivalue::Future& done) {
          done.value();  // throws what went wrong
          at::Tensor reduced = gradients;
          if (factor != 1) reduced.mul_(factor);
          return c10::IValue(reduced);
        },
        c10::TensorType::get());
  }
  const at::Tensor sent = narrow(gradients);
  return all_reduce(sent)->then(
      [gradients, sent, factor = world / divisor](c10::ivalue::Future& done) {
        done.value();  // throws what went wrong
        const at::NoGradGuard no_grad;
        at::Tensor reduced = gradients;
        reduced.copy_(sent);
        if (factor != 1) reduced.mul_(factor);
        return c10::IValue(reduced);
      },
      c10::TensorType::get());
}

at::Tensor Fp16Compress::narrow(const at::Tensor& share) {
  const auto [lowest, highest] = at::aminmax(share);
  const at::Tensor largest = at::maximum(highest, -lowest);
  if (!saturated_.defined()) saturated_ = at::zeros({}, share.options().dtype(at::kLong));
  saturated_ += (largest > largest_half).logical_and_(largest.isfinite());
  at::Tensor sent = share.clamp(-largest_half, largest_half).to(at::kHalf);
  // 0 where all is finite, else NaN: clamping must not hide an inf.
  if (sent.numel() > 0) sent[0].add_((highest - lowest).mul(0).to(at::kHalf));
  return sent;
}

int64_t Fp16Compress::saturated_buckets() const { return saturated_.defined() ? saturated_.item<int64_t>() : 0; }

}  // namespace saturate::distributed
