// SPDX-License-Identifier: Apache-2.0
#include "saturate/trainer/step_counter.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/take.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace saturate {
namespace {

// Waits only where the tensor is not in host memory.
template <class T>
T host_value(const at::Tensor& tensor) {
  return tensor.is_cpu() ? *tensor.const_data_ptr<T>() : *tensor.cpu().const_data_ptr<T>();
}

}  // namespace

void StepCounter::follow() {
  if (step_.defined()) return;
  step_ = at::scalar_tensor(host_, at::TensorOptions(device_).dtype(at::kLong));
}

void StepCounter::advance(const at::Tensor& refused) {
  ++window_;
  if (!refused.defined() && !step_.defined()) {
    ++host_;
    return;
  }
  if (!on_device_) {
    // Final once its operator has returned where tensors are host memory: this waits for nothing.
    if (!refused.defined() || host_value<float>(refused) == 0) ++host_;
    return;
  }
  const at::NoGradGuard no_grad;
  follow();
  if (refused.defined()) {
    step_ = step_ + (1 - refused).to(at::kLong);
  } else {
    step_ = step_ + 1;
  }
  ++unknown_;
  refresh();
}

// Starts a copy to the host when none is under way, and takes in one that has arrived. Never waits.
void StepCounter::refresh() {
  if (device_.is_cpu()) return;
  if (arrived_ && arrived_->query()) {
    host_ = *arriving_.const_data_ptr<int64_t>();
    unknown_ = window_ - arriving_window_;
    arrived_.reset();
  }
  if (arrived_) return;
  if (!arriving_.defined()) arriving_ = at::empty({}, at::TensorOptions(at::kCPU).dtype(at::kLong).pinned_memory(true));
  arriving_.copy_(step_, /*non_blocking=*/true);
  arriving_window_ = window_;
  arrived_.emplace(device_.type());
  arrived_->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

void StepCounter::fill(optim::StepArgs& args, const std::function<double(int64_t)>& factor) {
  if (!step_.defined()) {
    args.lr_factor = factor(host_);
    return;
  }
  const at::NoGradGuard no_grad;
  const bool covered = table_.defined() && host_ >= table_first_ && host_ + unknown_ < table_first_ + table_size;
  if (!covered) {
    if (unknown_ >= table_size) exact();  // so far behind that no table covers the range: the one place that waits
    table_first_ = host_;
    at::Tensor ahead = at::empty({table_size}, at::kFloat);
    float* values = ahead.mutable_data_ptr<float>();
    for (int64_t i = 0; i < table_size; ++i) values[i] = static_cast<float>(factor(table_first_ + i));
    if (!device_.is_cpu()) ahead = ahead.pin_memory();
    table_ = ahead.to(device_, /*non_blocking=*/true);
  }
  args.lr_factor_tensor = at::take(table_, table_first_ == 0 ? step_ : step_ - table_first_);
}

int64_t StepCounter::known() {
  if (step_.defined()) {
    if (device_.is_cpu()) return exact();
    refresh();
  }
  return host_;
}

int64_t StepCounter::exact() {
  if (step_.defined()) {
    host_ = host_value<int64_t>(step_);
    unknown_ = 0;
    arrived_.reset();
  }
  return host_;
}

void StepCounter::set(int64_t step) {
  host_ = step;
  unknown_ = 0;
  step_.reset();
  table_.reset();
  arrived_.reset();
}

}  // namespace saturate
