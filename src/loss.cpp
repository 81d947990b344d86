// SPDX-License-Identifier: Apache-2.0
#include "saturate/loss.hpp"

#include "saturate/error.hpp"

#include <ATen/core/Reduction.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/sum.h>
#include <c10/util/StringUtil.h>

#include <limits>

namespace saturate {
namespace {

// What the kernel is told to ignore when nothing is: no class has this index.
constexpr int64_t ignores_nothing = std::numeric_limits<int64_t>::min();

void check_same_shape(const char* loss, const at::Tensor& output, const at::Tensor& target) {
  if (output.sizes() == target.sizes()) return;
  throw ConfigError(c10::str(loss, ": output is ", output.sizes(), ", target ", target.sizes(),
                             "; give both one shape, broadcasting would change the count"));
}

}  // namespace

at::Tensor CrossEntropy::operator()(const at::Tensor& output, const at::Tensor& target) const {
  return at::cross_entropy_loss(output, target, {}, at::Reduction::Sum, ignore_index.value_or(ignores_nothing),
                                label_smoothing);
}

Count CrossEntropy::count(const at::Tensor& target) const {
  if (target.is_floating_point()) return target.numel() / target.size(1);
  if (!ignore_index) return target.numel();
  return at::ne(target, *ignore_index).sum();
}

at::Tensor CrossEntropy::correct(const at::Tensor& output, const at::Tensor& target) const {
  const at::Tensor wanted = target.is_floating_point() ? target.argmax(1) : target;
  return (output.argmax(1) == wanted).sum();  // an ignored target equals no class
}

void CrossEntropy::validate() const {
  if (label_smoothing >= 0 && label_smoothing <= 1) return;
  throw ConfigError(c10::str("CrossEntropy: label_smoothing is ", label_smoothing, "; it must lie in [0, 1]"));
}

at::Tensor MSE::operator()(const at::Tensor& output, const at::Tensor& target) const {
  check_same_shape("MSE", output, target);
  return at::mse_loss(output, target, at::Reduction::Sum);
}

at::Tensor BCEWithLogits::operator()(const at::Tensor& output, const at::Tensor& target) const {
  check_same_shape("BCEWithLogits", output, target);
  return at::binary_cross_entropy_with_logits(output, target, {}, {}, at::Reduction::Sum);
}

namespace detail {

void check_loss(const at::Tensor& loss, bool needs_graph) {
  if (!loss.defined() || loss.dim() != 0) {
    throw ConfigError(c10::str("the loss has ", loss.defined() ? c10::str("shape ", loss.sizes()) : "no value",
                               "; return a 0-dim tensor: the sum over the batch"));
  }
  if (needs_graph && !loss.requires_grad()) {
    throw ConfigError(
        "the loss does not depend on any parameter that requires a gradient; is every one frozen, or was "
        "the output detached?");
  }
}

}  // namespace detail
}  // namespace saturate
