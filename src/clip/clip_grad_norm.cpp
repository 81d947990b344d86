// SPDX-License-Identifier: Apache-2.0
#include "saturate/clip/clip_grad_norm.hpp"

#include "host_norms.hpp"
#include "saturate/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>

#include <cmath>
#include <map>
#include <optional>
#include <utility>

namespace saturate {
namespace {

// The kernels that handle many tensors at once want them alike.
using Alike = std::map<std::pair<at::ScalarType, c10::DeviceIndex>, std::vector<at::Tensor>>;

Alike sorted(const std::vector<at::Tensor>& gradients) {
  Alike alike;
  for (const at::Tensor& grad : gradients) {
    if (grad.numel() > 0) alike[{grad.scalar_type(), grad.device().index()}].push_back(grad);
  }
  return alike;
}

at::Tensor on(const at::Tensor& tensor, c10::Device device) {
  return tensor.device() == device ? tensor : tensor.to(device, /*non_blocking=*/true);
}

void add_norms(std::vector<at::Tensor>& norms, const std::vector<at::Tensor>& tensors, double norm_type,
               c10::Device device) {
  if (norm_type > 0 && std::isfinite(norm_type) && detail::in_readable_host_memory(tensors[0])) {
    norms.push_back(on(at::scalar_tensor(detail::host_norm(tensors, norm_type), at::kDouble), device));
    return;
  }
  // The largest value needs no wider dtype.
  const std::optional<at::ScalarType> wide = std::isinf(norm_type) ? std::nullopt : std::optional(at::kDouble);
  for (const at::Tensor& norm : at::_foreach_norm(tensors, norm_type, wide)) {
    norms.push_back(on(norm.to(at::kDouble), device));
  }
}

at::Tensor norm_of(const Alike& alike, double norm_type, c10::Device device) {
  std::vector<at::Tensor> norms;
  for (const auto& [kind, tensors] : alike) add_norms(norms, tensors, norm_type, device);
  if (norms.empty()) return at::zeros({}, at::TensorOptions(device).dtype(at::kDouble));
  return at::linalg_vector_norm(at::stack(norms), norm_type);
}

at::Tensor unit_norms(const at::Tensor& tensor) {
  if (tensor.dim() <= 1) return at::linalg_vector_norm(tensor, 2, c10::nullopt, false, at::kDouble);
  return at::linalg_vector_norm(tensor.flatten(1), 2, at::IntArrayRef{1}, false, at::kDouble);
}

// Gives grad's norm before.
at::Tensor clip_units_by_kernels(at::Tensor& grad, const at::Tensor& parameter, double clip_factor, double eps) {
  const at::Tensor of_grad = unit_norms(grad);
  const at::Tensor limit = unit_norms(parameter).clamp_min(eps) * clip_factor;
  const at::Tensor factor = (limit / of_grad.clamp_min(1e-6)).clamp_max(1.0).to(grad.scalar_type());
  std::vector<int64_t> shape(grad.dim(), 1);
  if (grad.dim() > 1) shape[0] = grad.size(0);
  grad.mul_(factor.view(shape));
  return at::linalg_vector_norm(of_grad);
}

at::Tensor not_finite(const at::Tensor& norm) { return at::isfinite(norm).logical_not().to(at::kFloat); }

// Scales `gradients` to max_norm; gives their norm before.
at::Tensor scale_to(const std::vector<at::Tensor>& gradients, double max_norm, double norm_type) {
  const Alike alike = sorted(gradients);
  const c10::Device device = gradients[0].device();
  const at::Tensor norm = norm_of(alike, norm_type, device);
  const at::Tensor factor = (max_norm / (norm + 1e-6)).clamp_max(1.0).to(at::kFloat);
  for (const auto& [kind, tensors] : alike) at::_foreach_mul_(tensors, on(factor, tensors[0].device()));
  return norm;
}

void require_positive(const char* policy, const char* name, double value) {
  if (value > 0) return;
  throw ConfigError(c10::str(policy, ": ", name, " is ", value, "; give a value above 0"));
}

}  // namespace

at::Tensor grad_norm(const std::vector<at::Tensor>& gradients, double norm_type) {
  const at::NoGradGuard no_grad;
  return norm_of(sorted(gradients), norm_type, gradients.empty() ? c10::Device(c10::kCPU) : gradients[0].device());
}

at::Tensor ClipContext::mean_loss() const {
  const at::NoGradGuard no_grad;
  const at::Tensor sum = loss_sum.to(at::kDouble);
  return count.on_host() ? sum / count.host : sum / count.device;
}

ClipResult ClipGradNorm::clip(std::vector<at::Tensor>& gradients) const {
  const at::NoGradGuard no_grad;
  if (gradients.empty()) return {grad_norm(gradients), {}};
  const at::Tensor norm = scale_to(gradients, max_norm, norm_type);
  return {norm, not_finite(norm)};
}

void ClipGradNorm::validate() const {
  require_positive("ClipGradNorm", "max_norm", max_norm);
  require_positive("ClipGradNorm", "norm_type", norm_type);
}

ClipResult ClipGradNormPerGroup::clip(std::vector<at::Tensor>& gradients, const ClipContext& context) const {
  const at::NoGradGuard no_grad;
  if (gradients.empty()) return {grad_norm(gradients), {}};
  std::map<std::size_t, std::vector<at::Tensor>> groups;
  for (std::size_t i = 0; i < gradients.size(); ++i) groups[context.groups[i]].push_back(gradients[i]);
  if (max_norms.size() != 1 && groups.rbegin()->first >= max_norms.size()) {
    throw ConfigError(c10::str("ClipGradNormPerGroup: ", max_norms.size(), " max_norms, but the optimizer has a group ",
                               groups.rbegin()->first, "; give one a group, or one for all"));
  }
  std::vector<at::Tensor> norms;
  for (const auto& [group, members] : groups) {
    const double max_norm = max_norms.size() == 1 ? max_norms[0] : max_norms[group];
    norms.push_back(on(scale_to(members, max_norm, norm_type), gradients[0].device()));
  }
  const at::Tensor norm = at::linalg_vector_norm(at::stack(norms), norm_type);
  return {norm, not_finite(norm)};
}

void ClipGradNormPerGroup::validate() const {
  if (max_norms.empty())
    throw ConfigError("ClipGradNormPerGroup: max_norms is empty; give one a group, or one for all");
  for (const double max_norm : max_norms) require_positive("ClipGradNormPerGroup", "max_norm", max_norm);
  require_positive("ClipGradNormPerGroup", "norm_type", norm_type);
}

ClipResult ClipGradValue::clip(std::vector<at::Tensor>& gradients) const {
  const at::NoGradGuard no_grad;
  const at::Tensor norm = grad_norm(gradients);
  for (const auto& [kind, tensors] : sorted(gradients)) {
    at::_foreach_clamp_min_(tensors, -clip_value);
    at::_foreach_clamp_max_(tensors, clip_value);
  }
  return {norm, not_finite(norm)};
}

void ClipGradValue::validate() const { require_positive("ClipGradValue", "clip_value", clip_value); }

ClipResult AdaptiveGradClip::clip(std::vector<at::Tensor>& gradients, const ClipContext& context) const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> norms;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    at::Tensor& grad = gradients[i];
    if (grad.numel() == 0) continue;
    const at::Tensor& parameter = context.parameters[i];
    const at::Tensor norm =
        detail::in_readable_host_memory(grad) && detail::in_readable_host_memory(parameter)
            ? at::scalar_tensor(std::sqrt(detail::clip_units_on_host(grad, parameter, clip_factor, eps)), at::kDouble)
            : clip_units_by_kernels(grad, parameter, clip_factor, eps);
    norms.push_back(on(norm, gradients[0].device()));
  }
  if (norms.empty()) return {grad_norm({}), {}};
  const at::Tensor norm = at::linalg_vector_norm(at::stack(norms));
  return {norm, not_finite(norm)};
}

void AdaptiveGradClip::validate() const {
  require_positive("AdaptiveGradClip", "clip_factor", clip_factor);
  require_positive("AdaptiveGradClip", "eps", eps);
}

}  // namespace saturate
