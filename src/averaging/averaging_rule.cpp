// SPDX-License-Identifier: Apache-2.0
#include "averaging_rule.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/remainder.h>

namespace saturate::detail {

AveragingRule::OnDevice AveragingRule::on_device(const at::Tensor& taken, const at::Tensor& steps) const {
  const at::Tensor since = steps - first;
  at::Tensor due = taken.logical_and(since >= 0);
  if (every > 1) due = due.logical_and(since.remainder(every) == 0);
  const at::Tensor n = (every > 1 ? since.floor_divide(every) : since).to(at::kDouble);
  if (!decay) return {due, (n + 1).reciprocal()};
  // A tensor even where the decay is constant: the first weight is 1, and which update is the first is known here only.
  const at::Tensor rest = warmup ? 1 - ((n + 1) / (n + 10)).clamp_max(*decay) : n * 0 + (1 - *decay);
  return {due, rest.masked_fill(n == 0, 1.0)};
}

}  // namespace saturate::detail
