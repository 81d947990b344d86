// SPDX-License-Identifier: Apache-2.0
#include "foreach.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_neg.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

namespace saturate::optim::foreach {

Gate::Gate(Cohort& cohort, const KernelArgs& args) {
  if (!args.found_inf) return;
  refused_ = *args.found_inf != 0;
  written_ = cohort.params;
  for (const auto& list : cohort.state) written_.insert(written_.end(), list.begin(), list.end());
  for (const at::Tensor& tensor : written_) kept_.push_back(at::empty_like(tensor));
  at::_foreach_copy_(kept_, written_);
}

void Gate::close() {
  for (std::size_t i = 0; i < kept_.size(); ++i) at::where_out(written_[i], refused_, kept_[i], written_[i]);
}

std::vector<at::Tensor> descent(const Cohort& cohort, at::TensorList grads, const KernelArgs& args, double decay) {
  std::vector<at::Tensor> result = args.flag("maximize") ? at::_foreach_neg(grads) : grads.vec();
  if (decay != 0) result = at::_foreach_add(result, cohort.params, decay);
  return result;
}

void subtract(at::TensorList tensors, at::TensorList updates, const KernelArgs& args) {
  if (args.lr_tensor.defined()) {
    at::_foreach_sub_(tensors, at::_foreach_mul(updates, args.lr_tensor));
  } else {
    at::_foreach_sub_(tensors, updates, args.lr);
  }
}

void decay(at::TensorList tensors, const KernelArgs& args) {
  const double weight_decay = args["weight_decay"];
  if (weight_decay == 0) return;
  if (args.lr_tensor.defined()) {
    at::_foreach_mul_(tensors, 1 - args.lr_tensor * weight_decay);
  } else {
    at::_foreach_mul_(tensors, 1 - args.lr * weight_decay);
  }
}

void times_lr(at::TensorList tensors, const KernelArgs& args) {
  if (args.lr_tensor.defined()) {
    at::_foreach_mul_(tensors, args.lr_tensor);
  } else {
    at::_foreach_mul_(tensors, args.lr);
  }
}

at::Tensor norms(at::TensorList tensors) {
  const bool wide = tensors[0].scalar_type() == at::kDouble;
  return at::stack(at::_foreach_norm(tensors, 2, wide ? at::kDouble : at::kFloat));
}

void scale_each(at::TensorList tensors, const at::Tensor& factors) {
  at::_foreach_mul_(tensors, factors.to(tensors[0].scalar_type()).unbind());
}

}  // namespace saturate::optim::foreach
