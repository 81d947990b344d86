// SPDX-License-Identifier: Apache-2.0
// The parts of a step that need no template. Used by step.hpp.
#pragma once

#include "saturate/for_each_tensor.hpp"
#include "saturate/optim/optimizer.hpp"
#include "saturate/trainer/count.hpp"
#include "saturate/trainer/events.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <exception>
#include <memory>
#include <vector>

namespace torch::nn {
class Module;
}

namespace saturate::detail {

/// The root gradient, made anew only when the host-known count changes.
class RootCache {
 public:
  const at::Tensor& get(const Count& count, const at::Tensor& scale, const at::Tensor& like);

 private:
  at::Tensor root_;
  double count_ = -1;
};

/// Gradients of a window that failed halfway must not leak into the next one.
class ClearOnError {
 public:
  explicit ClearOnError(optim::Optimizer& optimizer) : optimizer_(optimizer), exceptions_(std::uncaught_exceptions()) {}
  ~ClearOnError() {
    if (std::uncaught_exceptions() > exceptions_) optimizer_.zero_grad();
  }
  ClearOnError(const ClearOnError&) = delete;
  ClearOnError& operator=(const ClearOnError&) = delete;

 private:
  optim::Optimizer& optimizer_;
  int exceptions_;
};

/// Train or eval mode for every module while the object lives; then each is as it was.
class ModeScope {
 public:
  ModeScope(torch::nn::Module& module, bool train);
  ~ModeScope();
  ModeScope(const ModeScope&) = delete;
  ModeScope& operator=(const ModeScope&) = delete;

 private:
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> previous_;
};

void require_window(std::size_t micro_batches);
void run_backward(const at::Tensor& loss, const at::Tensor& root);
/// Nothing is launched when the tensor is there already.
void move_to(at::Tensor& tensor, c10::Device device);

/// The gradients that there are, with what clipping may ask about each.
struct GradientList {
  std::vector<at::Tensor> gradients, parameters;
  std::vector<std::size_t> groups;
};
GradientList defined_gradients(const optim::Optimizer& optimizer, const std::vector<at::Tensor>& parameters);

std::size_t group_count(const optim::Optimizer& optimizer);

/// A sum in float16 or bfloat16 as float32, so that a scaled root gradient and a window's sum fit.
at::Tensor at_least_float(const at::Tensor& sum);
void divide(std::vector<at::Tensor>& gradients, const Count& count);
/// `total` may be undefined (0).
void add_to(at::Tensor& total, const at::Tensor& value);
/// Adds a reason to refuse the step; `reason` may be undefined.
void refuse(at::Tensor& refused, const at::Tensor& reason);
at::Tensor refused_for_certain(c10::Device device);

/// Where to train by default.
c10::Device default_device();
/// Moves the model, gives the optimizer its names, and warns of settings without effect or at odds with each other.
void set_up_model(torch::nn::Module& module, optim::Optimizer& optimizer, c10::Device device, int64_t micro_batches);

bool has_batch_norm(const torch::nn::Module& module);

int64_t element_count(const optim::Optimizer& optimizer);
/// "loss" (NaN without targets), and "accuracy" where `correct` is defined.
Metrics read_metrics(const Count& count, const at::Tensor& sum, const at::Tensor& correct);

/// Samples of a batch: the first dimension of the first input tensor.
int64_t batch_size_of(const at::Tensor& first);
template <class Inputs>
int64_t first_size(const Inputs& inputs) {
  at::Tensor first;
  visit_tensors(inputs, [&](const at::Tensor& tensor) {
    if (!first.defined()) first = tensor;
  });
  return batch_size_of(first);
}

}  // namespace saturate::detail
