// SPDX-License-Identifier: Apache-2.0
#include "saturate/distributed/compress.hpp"

#include "half_loops.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace saturate::distributed {
namespace {

/// What every rank may send without the sum overflowing: each of its additions may round up.
double largest_half_of(int ranks) { return 65504.0 / (ranks * std::pow(1 + std::ldexp(1.0, -11), ranks)); }

}  // namespace

int64_t CastHook::bytes_sent(const Bucket& bucket) const {
  return bucket.gradients.numel() * std::min<int64_t>(bucket.gradients.element_size(), 2);
}

CommHook::Future CastHook::reduce(Bucket& bucket, double divisor) {
  const at::NoGradGuard no_grad;
  const at::Tensor gradients = bucket.gradients;
  const double world = group().world_size();
  const bool in_one_pass = detail::has_half_loops(gradients, dtype_);
  if (!in_one_pass) gradients.div_(world);
  const at::Tensor had = !measures() ? at::Tensor() : in_one_pass ? gradients / world : gradients.clone();
  const bool narrow_already = gradients.element_size() <= 2 && gradients.scalar_type() != dtype_;
  const at::Tensor sent = in_one_pass      ? narrow_in_one_pass(gradients, 1 / world)
                          : narrow_already ? gradients
                                           : narrow(gradients);
  if (measures()) note_error(bucket.index, {had}, {had - sent});
  return all_reduce(sent)->then(
      [gradients, sent, in_one_pass, factor = world / divisor](c10::ivalue::Future& done) {
        done.value();  // throws what went wrong
        const at::NoGradGuard no_grad;
        if (in_one_pass) {
          detail::widen(sent, gradients, factor);
          return c10::IValue(gradients);
        }
        if (!gradients.is_same(sent)) gradients.copy_(sent);
        if (factor != 1) gradients.mul_(factor);
        return c10::IValue(gradients);
      },
      c10::TensorType::get());
}

at::Tensor CastHook::narrow(const at::Tensor& share) { return share.to(dtype_); }

at::Tensor CastHook::narrow_in_one_pass(const at::Tensor& gradients, double factor) {
  const at::Tensor sent = at::empty({gradients.numel()}, gradients.options().dtype(dtype_));
  detail::narrow(gradients, sent, factor);
  return sent;
}

at::Tensor Fp16Compress::narrow(const at::Tensor& share) {
  if (share.numel() == 0) return share.to(at::kHalf);
  const double limit = largest_half_of(group().world_size());
  const auto [lowest, highest] = at::aminmax(share);
  const at::Tensor largest = at::maximum(highest, -lowest);
  count_saturated((largest > limit).logical_and_(largest.isfinite()));
  const at::Tensor sent = share.to(at::kHalf).clamp_(-limit, limit);  // what did not fit was inf in between
  // 0 where all is finite, else NaN: clamping must not hide an inf.
  sent[0].add_((highest * 0 + lowest * 0).to(at::kHalf));
  return sent;
}

at::Tensor Fp16Compress::narrow_in_one_pass(const at::Tensor& gradients, double factor) {
  const at::Tensor sent = at::empty({gradients.numel()}, gradients.options().dtype(at::kHalf));
  const auto found = detail::narrow(gradients, sent, factor, largest_half_of(group().world_size()));
  if (found.not_finite) sent[0].fill_(std::numeric_limits<double>::quiet_NaN());
  count_saturated(at::scalar_tensor(found.beyond && !found.not_finite, at::kBool));
  return sent;
}

void Fp16Compress::count_saturated(const at::Tensor& one) {
  if (!saturated_.defined()) saturated_ = at::zeros({}, one.options().dtype(at::kLong));
  saturated_ += one;
}

int64_t Fp16Compress::saturated_buckets() const { return saturated_.defined() ? saturated_.item<int64_t>() : 0; }

}  // namespace saturate::distributed
