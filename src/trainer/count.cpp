// SPDX-License-Identifier: Apache-2.0
#include "saturate/trainer/count.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/scalar_tensor.h>

namespace saturate {

Count& Count::operator+=(const Count& other) {
  if (on_host() && other.on_host()) {
    host += other.host;
  } else if (on_host()) {
    device = host == 0 ? other.device : other.device + host;
  } else if (other.on_host()) {
    if (other.host != 0) device = device + other.host;
  } else {
    device = device + other.device;
  }
  return *this;
}

namespace detail {

at::Tensor root_gradient(const Count& count, const at::Tensor& scale, const at::Tensor& like) {
  const auto options = like.options().requires_grad(false);
  at::Tensor root;
  if (count.on_host()) {
    root = at::scalar_tensor(count.host > 0 ? 1.0 / count.host : 0.0, options);
  } else {
    root = count.device.to(options).clamp_min(1).reciprocal();  // the sum over no target has gradient 0 by itself
  }
  return scale.defined() ? root * scale.to(options) : root;
}

at::Tensor refuse_empty(const Count& count) {
  if (count.on_host()) return {};
  return (count.device == 0).to(at::kFloat);
}

}  // namespace detail
}  // namespace saturate
