// SPDX-License-Identifier: Apache-2.0
// What the optimizers without a fused kernel share where they run on at::_foreach_*: CUDA, and half precision.
#pragma once

#include "saturate/optim/cohort_optimizer.hpp"

#include <ATen/core/Tensor.h>

#include <vector>

namespace saturate::optim::foreach {

/// Keeps what a step writes, and puts it back where the step was refused, which only the device may know. By selection:
/// a product with 0 would keep a NaN.
class Gate {
 public:
  Gate(Cohort& cohort, const KernelArgs& args);
  void close();

 private:
  std::vector<at::Tensor> written_, kept_;
  at::Tensor refused_;  // 0-dim bool; undefined: the step is taken
};

/// Gradients to descend along: negated under "maximize", with `decay` times the parameters added.
std::vector<at::Tensor> descent(const Cohort& cohort, at::TensorList grads, const KernelArgs& args, double decay);

/// tensors -= lr * updates.
void subtract(at::TensorList tensors, at::TensorList updates, const KernelArgs& args);
/// tensors *= 1 - lr * weight_decay.
void decay(at::TensorList tensors, const KernelArgs& args);
/// tensors *= lr.
void times_lr(at::TensorList tensors, const KernelArgs& args);

/// 1-dim, the 2-norm of each tensor, in float32 or wider.
at::Tensor norms(at::TensorList tensors);
/// tensors[i] *= factors[i]; `factors` is 1-dim.
void scale_each(at::TensorList tensors, const at::Tensor& factors);

}  // namespace saturate::optim::foreach
