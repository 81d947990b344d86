// SPDX-License-Identifier: Apache-2.0
#include "saturate/precision/grad_scaler.hpp"

#include "../optim/cpu_kernel.hpp"
#include "../optim/loops.hpp"
#include "saturate/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <utility>

namespace saturate {
namespace {

std::vector<at::Tensor> defined(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) result.push_back(tensor);
  }
  return result;
}

std::vector<at::Tensor> gradients_of(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> result;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& param : group.params()) {
      if (param.grad().defined()) result.push_back(param.grad());
    }
  }
  return result;
}

at::Tensor on(const at::Tensor& tensor, c10::Device device) {
  return tensor.device() == device ? tensor : tensor.to(device, /*non_blocking=*/true);
}

bool in_dense_host_memory(const std::vector<at::Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& tensor) { return tensor.is_cpu() && tensor.is_non_overlapping_and_dense(); });
}

// One pass on the CPU, where LibTorch's kernel makes 1.15 of one, and of thousands of small tensors as of one large
// one.
template <class T>
bool unscale_on_cpu(const std::vector<at::Tensor>& tensors, double inverse) {
  std::vector<T*> memory;
  for (const at::Tensor& tensor : tensors) memory.push_back(tensor.mutable_data_ptr<T>());
  const auto loop = optim::loops::best<T>().multiply_and_check;
  std::atomic<bool> found = false;
  optim::cpu::Blocks(tensors).run([&](const optim::cpu::Block& block) {
    T* values = memory[block.tensor] + block.begin;
    if (loop(block.size, static_cast<T>(inverse), values)) found = true;
  });
  return found;
}

bool positive(double value) { return std::isfinite(value) && value > 0; }

}  // namespace

void GradScalerOptions::validate() const {
  const auto complain = [](const char* name, auto value, const char* wanted) {
    throw ConfigError(c10::str("GradScaler: ", name, " is ", value, "; give ", wanted));
  };
  if (!positive(init_scale)) complain("init_scale", init_scale, "a finite value above 0");
  if (!positive(growth_factor) || growth_factor <= 1) complain("growth_factor", growth_factor, "a value above 1");
  if (!positive(backoff_factor) || backoff_factor >= 1) complain("backoff_factor", backoff_factor, "a value in (0, 1)");
  if (growth_interval < 1) complain("growth_interval", growth_interval, "1 step or more");
  if (!positive(min_scale)) complain("min_scale", min_scale, "a finite value above 0");
  if (min_scale > init_scale) {
    throw ConfigError(c10::str("GradScaler: init_scale is ", init_scale, ", below min_scale ", min_scale,
                               "; start at the floor or above"));
  }
}

GradScaler::GradScaler(const GradScalerOptions& options) : options_(options), initial_scale_(options.init_scale) {
  options_.validate();
}

const at::Tensor& GradScaler::scale_tensor(c10::Device device) {
  if (!scale_.defined()) {
    scale_ = at::full({}, initial_scale_, at::TensorOptions(device).dtype(at::kFloat));
    tracker_ = at::full({}, initial_tracker_, at::TensorOptions(device).dtype(at::kInt));
  }
  return scale_;
}

at::Tensor GradScaler::scale_on(c10::Device device) { return on(scale_tensor(device), device); }

at::Tensor GradScaler::scale(const at::Tensor& loss) { return loss * scale_on(loss.device()); }

at::Tensor GradScaler::unscale(const std::vector<at::Tensor>& gradients) {
  const at::NoGradGuard no_grad;
  // One kernel call a device and dtype.
  std::map<std::pair<c10::DeviceIndex, at::ScalarType>, std::vector<at::Tensor>> alike;
  for (const at::Tensor& grad : gradients) {
    if (grad.scalar_type() == at::kHalf) {
      throw ConfigError(
          "GradScaler: a gradient is float16, and dividing it in place would underflow; keep the model in float32 "
          "under autocast, or train a float16 model with optim::MasterWeights");
    }
    if (grad.numel() > 0) alike[{grad.device().index(), grad.scalar_type()}].push_back(grad);
  }
  const at::Tensor scale = scale_tensor(gradients.empty() ? c10::Device(c10::kCPU) : gradients[0].device());
  const at::Tensor inverse = scale.to(at::kDouble).reciprocal().to(at::kFloat);
  at::Tensor found = at::zeros({}, scale.options());
  for (const auto& [kind, tensors] : alike) {
    const c10::Device device = tensors[0].device();
    const at::ScalarType dtype = kind.second;
    if (scale.is_cpu() && (dtype == at::kFloat || dtype == at::kDouble) && in_dense_host_memory(tensors)) {
      const double by = *inverse.const_data_ptr<float>();  // in host memory: waits for nothing
      if (dtype == at::kFloat ? unscale_on_cpu<float>(tensors, by) : unscale_on_cpu<double>(tensors, by))
        found.fill_(1);
      continue;
    }
    at::Tensor found_here = device == scale.device() ? found : at::zeros({}, scale.options().device(device));
    at::_amp_foreach_non_finite_check_and_unscale_(tensors, found_here, on(inverse, device));
    if (device != scale.device()) found = at::maximum(found, on(found_here, scale.device()));
  }
  return found;
}

void GradScaler::update(const at::Tensor& found_inf, const at::Tensor& idle) {
  const at::NoGradGuard no_grad;
  at::Tensor scale = scale_tensor(found_inf.device());
  const at::Tensor old_scale = idle.defined() ? scale.clone() : at::Tensor();
  const at::Tensor old_tracker = idle.defined() ? tracker_.clone() : at::Tensor();
  at::_amp_update_scale_(scale, tracker_, on(found_inf, scale.device()), options_.growth_factor,
                         options_.backoff_factor, options_.growth_interval);
  scale.clamp_min_(options_.min_scale);
  if (!idle.defined()) return;
  const at::Tensor keep = on(idle, scale.device()) != 0;
  scale.copy_(at::where(keep, old_scale, scale));
  tracker_.copy_(at::where(keep, old_tracker, tracker_));
}

// --- stages
// -----------------------------------------------------------------------------------------------------------

GradScaler::OfOptimizer& GradScaler::begin_unscale(const void* optimizer) {
  if (!scale_.defined()) {
    throw StateError("GradScaler: unscale_ before anything was scaled; call scale(loss).backward() first");
  }
  OfOptimizer& entry = optimizers_[optimizer];
  if (entry.stage == Stage::unscaled) {
    throw StateError("GradScaler: unscale_ was called twice on this optimizer since the last update()");
  }
  if (entry.stage == Stage::stepped) {
    throw StateError("GradScaler: unscale_ was called after step(); unscale first, then clip, then step");
  }
  return entry;
}

GradScaler::OfOptimizer& GradScaler::begin_step(const void* optimizer) {
  if (!scale_.defined()) {
    throw StateError("GradScaler: step before anything was scaled; call scale(loss).backward() first");
  }
  OfOptimizer& entry = optimizers_[optimizer];
  if (entry.stage == Stage::stepped) {
    throw StateError("GradScaler: step was called twice on this optimizer since the last update()");
  }
  return entry;
}

void GradScaler::finish_unscale(OfOptimizer& entry, const std::vector<at::Tensor>& gradients) {
  if (gradients.empty()) {
    throw StateError("GradScaler: no parameter of this optimizer has a gradient; call scale(loss).backward() first");
  }
  entry.found_inf = unscale(gradients);
  entry.stage = Stage::unscaled;
}

void GradScaler::unscale_(optim::Optimizer& optimizer) {
  finish_unscale(begin_unscale(&optimizer), defined(optimizer.gradients()));
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  finish_unscale(begin_unscale(&optimizer), gradients_of(optimizer));
}

void GradScaler::step(optim::Optimizer& optimizer, optim::StepArgs args) {
  OfOptimizer& entry = begin_step(&optimizer);
  if (entry.stage == Stage::ready) finish_unscale(entry, defined(optimizer.gradients()));
  args.found_inf = args.found_inf.defined() ? at::maximum(args.found_inf, entry.found_inf) : entry.found_inf;
  optimizer.step(args);
  entry.stage = Stage::stepped;
}

void GradScaler::step(torch::optim::Optimizer& optimizer) {
  OfOptimizer& entry = begin_step(&optimizer);
  if (entry.stage == Stage::ready) finish_unscale(entry, gradients_of(optimizer));
  if (entry.found_inf.item<float>() == 0) optimizer.step();
  entry.stage = Stage::stepped;
}

void GradScaler::update() {
  at::Tensor found;
  for (const auto& [optimizer, entry] : optimizers_) {
    if (!entry.found_inf.defined()) continue;
    found = found.defined() ? at::maximum(found, entry.found_inf) : entry.found_inf;
  }
  if (!found.defined()) {
    throw StateError("GradScaler: update() without a step() or unscale_() since the last one: nothing was looked at");
  }
  update(found, {});
  optimizers_.clear();
}

void GradScaler::update(double new_scale) {
  if (!std::isfinite(new_scale) || new_scale < options_.min_scale) {
    throw ConfigError(c10::str("GradScaler: the new scale is ", new_scale, "; give a finite value of ",
                               options_.min_scale, " (min_scale) or more"));
  }
  initial_scale_ = new_scale;
  if (scale_.defined()) scale_.fill_(new_scale);
  optimizers_.clear();
}

double GradScaler::get_scale() const { return scale_.defined() ? scale_.item<double>() : initial_scale_; }

GradScalerState GradScaler::state() const {
  return {.scale = get_scale(),
          .growth_factor = options_.growth_factor,
          .backoff_factor = options_.backoff_factor,
          .growth_interval = options_.growth_interval,
          .growth_tracker = tracker_.defined() ? tracker_.item<int64_t>() : initial_tracker_};
}

void GradScaler::load_state(const GradScalerState& state) {
  GradScalerOptions options = options_;
  options.growth_factor = state.growth_factor;
  options.backoff_factor = state.backoff_factor;
  options.growth_interval = state.growth_interval;
  options.init_scale = state.scale;
  options.min_scale = std::min(options.min_scale, state.scale);  // a scale saved without a floor
  try {
    options.validate();
  } catch (const ConfigError& error) {
    throw StateError(c10::str("saved state of a scaler cannot work: ", error.what(), "; nothing was loaded"));
  }
  if (state.growth_tracker < 0) {
    throw StateError(
        c10::str("GradScaler: the saved growth_tracker is ", state.growth_tracker, "; nothing was loaded"));
  }
  options_ = options;
  initial_scale_ = state.scale;
  initial_tracker_ = state.growth_tracker;
  if (scale_.defined()) {
    scale_.fill_(state.scale);
    tracker_.fill_(state.growth_tracker);
  }
  optimizers_.clear();
}

}  // namespace saturate
