// SPDX-License-Identifier: Apache-2.0
#include "saturate/trainer/step_support.hpp"

#include "saturate/error.hpp"
#include "saturate/log.hpp"
#include "saturate/trainer/options.hpp"
#include "saturate/trainer/step_result.hpp"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <limits>
#include <unordered_set>

namespace saturate {

double StepResult::loss() const {
  if (!loss_sum.defined()) return std::numeric_limits<double>::quiet_NaN();
  const double targets = count.on_host() ? count.host : count.device.item<double>();
  return targets > 0 ? loss_sum.item<double>() / targets : std::numeric_limits<double>::quiet_NaN();
}

bool StepResult::taken() const { return !refused.defined() || refused.item<float>() == 0; }

void FitOptions::validate() const {
  const auto complain = [](const char* name, int64_t value, const char* wanted) {
    throw ConfigError(c10::str("fit: ", name, " is ", value, "; give ", wanted));
  };
  if (epochs < 1) complain("epochs", epochs, "1 or more");
  if (log_every < 0) complain("log_every", log_every, "0 or more windows");
  if (evaluate_every < 0) complain("evaluate_every", evaluate_every, "0 or more windows");
  if (max_windows < 0) complain("max_windows", max_windows, "0 (no limit) or more");
}

namespace detail {

const at::Tensor& RootCache::get(const Count& count, const at::Tensor& scale, const at::Tensor& like) {
  const bool cacheable = count.on_host() && !scale.defined();
  const bool fits = cacheable && root_.defined() && count_ == count.host && root_.scalar_type() == like.scalar_type() &&
                    root_.device() == like.device();
  if (!fits) {
    root_ = root_gradient(count, scale, like);
    count_ = cacheable ? count.host : -1;
  }
  return root_;
}

ModeScope::ModeScope(torch::nn::Module& module, bool train) {
  for (auto& part : module.modules()) previous_.emplace_back(part, part->is_training());
  module.train(train);
}

ModeScope::~ModeScope() {
  // Innermost first: train() goes down into the children.
  for (const auto& [part, was_training] : previous_) part->train(was_training);
}

void require_window(std::size_t micro_batches) {
  if (micro_batches == 0) throw ConfigError("step: the window is empty; give at least one micro-batch");
}

void run_backward(const at::Tensor& loss, const at::Tensor& root) { torch::autograd::backward({loss}, {root}); }

void move_to(at::Tensor& tensor, c10::Device device) {
  if (!tensor.defined() || tensor.device() == device) return;
  tensor = tensor.to(device, /*non_blocking=*/tensor.is_cpu() && tensor.is_pinned());
}

GradientList defined_gradients(const optim::Optimizer& optimizer, const std::vector<at::Tensor>& parameters) {
  const std::vector<at::Tensor> gradients = optimizer.gradients();
  const std::vector<std::size_t> groups = optimizer.groups();
  GradientList result;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!gradients[i].defined()) continue;
    result.gradients.push_back(gradients[i]);
    result.parameters.push_back(parameters[i]);
    result.groups.push_back(groups[i]);
  }
  return result;
}

std::size_t group_count(const optim::Optimizer& optimizer) {
  std::size_t count = 1;
  for (const std::size_t group : optimizer.groups()) count = std::max(count, group + 1);
  return count;
}

at::Tensor at_least_float(const at::Tensor& sum) {
  const bool narrow = sum.scalar_type() == at::kHalf || sum.scalar_type() == at::kBFloat16;
  return narrow ? sum.to(at::kFloat) : sum;
}

void divide(std::vector<at::Tensor>& gradients, const Count& count) {
  if (gradients.empty()) return;
  const at::NoGradGuard no_grad;
  const at::Tensor like = gradients[0].scalar_type() == at::kDouble ? gradients[0] : gradients[0].to(at::kFloat);
  at::_foreach_mul_(gradients, root_gradient(count, {}, like));
}

void add_to(at::Tensor& total, const at::Tensor& value) { total = total.defined() ? total + value : value; }

void refuse(at::Tensor& refused, const at::Tensor& reason) {
  if (!reason.defined()) return;
  refused = refused.defined() ? at::maximum(refused, reason) : reason;
}

at::Tensor refused_for_certain(c10::Device device) { return at::ones({}, at::TensorOptions(device).dtype(at::kFloat)); }

c10::Device default_device() { return at::hasCUDA() ? c10::Device(c10::kCUDA, 0) : c10::Device(c10::kCPU); }

int64_t element_count(const optim::Optimizer& optimizer) {
  int64_t count = 0;
  for (const at::Tensor& param : optimizer.parameters()) count += param.numel();
  return count;
}

Metrics read_metrics(const Count& count, const at::Tensor& sum, const at::Tensor& correct) {
  const double targets = count.on_host() ? count.host : count.device.item<double>();
  const auto mean = [&](const at::Tensor& total) {
    return targets > 0 ? total.item<double>() / targets : std::numeric_limits<double>::quiet_NaN();
  };
  Metrics metrics{{"loss", sum.defined() ? mean(sum) : std::numeric_limits<double>::quiet_NaN()}};
  if (correct.defined()) metrics["accuracy"] = mean(correct);
  return metrics;
}

int64_t batch_size_of(const at::Tensor& first) {
  if (!first.defined() || first.dim() == 0) {
    throw ConfigError(
        "step: the batch's first input is not a tensor with a batch dimension; inputs(batch) gives a tuple "
        "of tensors with the samples along dimension 0");
  }
  return first.size(0);
}

bool has_batch_norm(const torch::nn::Module& module) {
  const auto parts = module.modules();
  return std::any_of(parts.begin(), parts.end(),
                     [](const auto& part) { return part->name().find("BatchNorm") != std::string::npos; });
}

namespace {

void warn_of_batch_norm(const torch::nn::Module& module, int64_t micro_batches) {
  if (micro_batches == 1 || !has_batch_norm(module)) return;
  log::warn(
      "Accumulate with BatchNorm: its statistics are those of a micro-batch, so a window is not exactly the batch "
      "it stands for (docs/accumulation.md)");
}

void warn_of_strays(const torch::nn::Module& module, const optim::Optimizer& optimizer) {
  std::unordered_set<const c10::TensorImpl*> optimized;
  for (const at::Tensor& param : optimizer.parameters()) optimized.insert(param.unsafeGetTensorImpl());
  std::size_t ours = 0, forgotten = 0;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const at::Tensor& param : module.parameters()) {
    if (!seen.insert(param.unsafeGetTensorImpl()).second) continue;
    const bool known = optimized.contains(param.unsafeGetTensorImpl());
    ours += known;
    forgotten += !known && param.requires_grad();
  }
  if (ours < optimized.size()) {
    log::warn(c10::str("Trainer: ", optimized.size() - ours, " of the optimizer's ", optimized.size(),
                       " parameters are not the model's; was it made from another model?"));
  }
  if (forgotten > 0) {
    log::warn(c10::str("Trainer: ", forgotten,
                       " parameters of the model require a gradient but are not the optimizer's; "
                       "freeze them with requires_grad_(false), which also saves their gradients"));
  }
}

}  // namespace

void set_up_model(torch::nn::Module& module, optim::Optimizer& optimizer, c10::Device device, int64_t micro_batches) {
  if (device.is_cuda() && !at::hasCUDA()) {
    throw ConfigError("Trainer: the device is " + device.str() +
                      ", but there is no GPU here; leave TrainerOptions::device "
                      "unset to train where there is one");
  }
  if (micro_batches < 1) {
    throw ConfigError(c10::str("Trainer: a window of ", micro_batches, " micro-batches; give 1 or more"));
  }
  module.to(device);
  optim::NamedTensors named;
  for (const auto& item : module.named_parameters()) named.emplace_back(item.key(), item.value());
  optimizer.name_parameters(named);
  optimizer.zero_grad();
  warn_of_batch_norm(module, micro_batches);
  warn_of_strays(module, optimizer);
}

}  // namespace detail
}  // namespace saturate
