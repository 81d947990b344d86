// SPDX-License-Identifier: Apache-2.0
#include "saturate/distributed/comm_hook.hpp"

#include "saturate/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <mutex>

namespace saturate::distributed {

at::Tensor in_shape_of(const at::Tensor& parameter, const at::Tensor& flat) {
  return parameter.is_non_overlapping_and_dense() ? flat.as_strided(parameter.sizes(), parameter.strides())
                                                  : flat.view(parameter.sizes());
}

CommHook::Future CommHook::all_reduce(const at::Tensor& tensor, const ProcessGroup& group) {
  std::vector<at::Tensor> tensors{tensor};
  c10d::AllreduceOptions options;
  options.timeout = group.timeout();
  return group.c10d()->allreduce(tensors, options)->getFuture();
}

/// Norms of the last window's buckets, by index.
struct CommHook::Measured {
  std::mutex mutex;  // futures of several buckets complete on several threads
  std::map<std::size_t, std::pair<at::Tensor, at::Tensor>> buckets;
};

void CommHook::measure_error(bool on) { measured_ = on ? std::make_shared<Measured>() : nullptr; }

void CommHook::note_error(std::size_t bucket, at::TensorList had, at::TensorList lost) const {
  const at::NoGradGuard no_grad;
  const auto norm = [](at::TensorList tensors) {
    std::vector<at::Tensor> norms;
    for (const at::Tensor& tensor : tensors) {
      norms.push_back(at::linalg_vector_norm(tensor, 2, std::nullopt, false, at::kDouble));
    }
    return at::linalg_vector_norm(at::stack(norms));
  };
  std::pair<at::Tensor, at::Tensor> norms{norm(had), norm(lost)};
  const std::lock_guard lock(measured_->mutex);
  measured_->buckets[bucket] = std::move(norms);
}

at::Tensor CommHook::relative_error() const {
  if (measured_ == nullptr) return {};
  const std::lock_guard lock(measured_->mutex);
  if (measured_->buckets.empty()) return at::zeros({}, at::TensorOptions(group_.device()).dtype(at::kDouble));
  std::vector<at::Tensor> had, lost;
  for (const auto& [index, norms] : measured_->buckets) {
    had.push_back(norms.first);
    lost.push_back(norms.second);
  }
  const at::Tensor whole = at::linalg_vector_norm(at::stack(had));
  const at::Tensor error = at::linalg_vector_norm(at::stack(lost)) / whole;
  return error.masked_fill(whole == 0, 0);
}

HookState CommHook::state() const { return {.type = name(), .ranks = group_.world_size()}; }

void CommHook::load_state(const HookState& state) {
  if (state.type != name()) {
    throw StateError(
        c10::str("the hook is ", name(), ", the state is of ", state.type, ": load it into the same hook"));
  }
}

CommHook::Future AllReduce::reduce(Bucket& bucket, double divisor) {
  const at::NoGradGuard no_grad;
  const at::Tensor gradients = bucket.gradients;
  if (divisor == 1) return all_reduce(gradients);
  if (!gradients.is_cpu() || gradients.element_size() < 4) {
    gradients.div_(divisor);  // before the sum, which may not fit otherwise
    return all_reduce(gradients);
  }
  // After it: backward's thread goes on, and the one that reduces has time.
  return all_reduce(gradients)->then(
      [gradients, divisor](c10::ivalue::Future& done) {
        done.value();  // throws what went wrong
        const at::NoGradGuard no_grad;
        gradients.div_(divisor);
        return c10::IValue(gradients);
      },
      c10::TensorType::get());
}

}  // namespace saturate::distributed
