// SPDX-License-Identifier: Apache-2.0
#include "saturate/clip/clip_grad_norm.hpp"

#include "saturate/error.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>

#include <map>
#include <utility>

namespace saturate {

ClipResult ClipGradNorm::clip(std::vector<at::Tensor>& gradients) const {
  const at::NoGradGuard no_grad;
  if (gradients.empty()) return {at::zeros({}, at::kDouble), {}};
  // One call a dtype and device: the kernels that handle many tensors at once want them alike.
  std::map<std::pair<at::ScalarType, c10::DeviceIndex>, std::vector<at::Tensor>> alike;
  for (const at::Tensor& grad : gradients) {
    if (grad.numel() > 0) alike[{grad.scalar_type(), grad.device().index()}].push_back(grad);
  }
  const at::Device device = gradients[0].device();
  std::vector<at::Tensor> norms;
  for (const auto& [kind, tensors] : alike) {
    for (const at::Tensor& norm : at::_foreach_norm(tensors, 2, at::kDouble)) {
      norms.push_back(norm.device() == device ? norm : norm.to(device));
    }
  }
  if (norms.empty()) return {at::zeros({}, gradients[0].options().dtype(at::kDouble).requires_grad(false)), {}};
  const at::Tensor norm = at::linalg_vector_norm(at::stack(norms));
  const at::Tensor factor = (max_norm / (norm + 1e-6)).clamp_max(1.0).to(at::kFloat);
  for (auto& [kind, tensors] : alike) {
    at::_foreach_mul_(tensors, tensors[0].device() == device ? factor : factor.to(tensors[0].device()));
  }
  return {norm, at::isfinite(norm).logical_not().to(at::kFloat)};
}

void ClipGradNorm::validate() const {
  if (max_norm > 0) return;
  throw ConfigError(c10::str("ClipGradNorm: max_norm is ", max_norm, "; give a value above 0"));
}

}  // namespace saturate
