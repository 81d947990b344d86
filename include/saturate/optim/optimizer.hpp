// SPDX-License-Identifier: Apache-2.0
// What the Trainer asks of an optimizer. It is the last part of a step: window -> backward -> unscale -> clip -> HERE.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace saturate::optim {

/// What a step is taken with, beside the gradients.
struct StepArgs {
  /// Multiplies every group's learning rate; a schedule gives it.
  double lr_factor = 1.0;
  /// The same as a 0-dim float32 tensor on the parameters' device; wins over `lr_factor` when defined. Lets a schedule
  /// follow a step number that only the device knows.
  at::Tensor lr_factor_tensor;
  /// One factor for each group, from a schedule per group; wins over both when not empty.
  std::vector<double> group_lr_factors = {};
  /// 0-dim float32 on the parameters' device, 0 or 1: with 1 the step changes nothing, bit for bit. Undefined: the step
  /// is taken.
  at::Tensor found_inf;
  /// Replaces every group's momentum (beta1 where the method calls it that); a one-cycle schedule gives it. An
  /// optimizer without momentum takes no notice.
  std::optional<double> momentum;
};

/// State by parameter name. Tensors are the live ones: clone them to keep a copy while training goes on.
struct OptimizerState {
  std::string type;                                                     ///< "AdamW"
  std::map<std::string, std::map<std::string, at::Tensor>> parameters;  ///< every parameter; empty: no step yet
  std::vector<std::map<std::string, double>> groups;                    ///< options of each group ("lr", ...)
};

/// Memory of an optimizer's own tensors: moments, master weights, step numbers.
struct StateBytes {
  int64_t now = 0;      ///< there already
  int64_t to_come = 0;  ///< that first steps will make, of parameters that require a gradient
};

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// One update from the parameters' `grad()`; a parameter without a gradient is left alone, its moments too.
  virtual void step(const StepArgs& args) = 0;
  void step() { step(StepArgs{}); }
  /// Begins a step that wait() ends. Between the two parameters may be read or written by nobody; gradients may be
  /// cleared. The default does all of it here.
  virtual void start_step(const StepArgs& args) { step(args); }
  /// Until the parameters are those after the step; returns at once where they are.
  virtual void wait() const {}
  /// Gradients become undefined, or zero. Undefined is cheaper, and tells "no gradient" from "gradient 0".
  virtual void zero_grad(bool set_to_none = true) = 0;

  /// Every parameter once, tied ones too.
  virtual std::vector<at::Tensor> parameters() const = 0;
  /// Called after the backward of every micro-batch. An optimizer that keeps gradients in a wider dtype than the
  /// parameters' takes them over here.
  virtual void gather_gradients() {}
  /// What the step will use, to be unscaled and clipped in place: parallel to parameters(), undefined where there is
  /// none.
  virtual std::vector<at::Tensor> gradients() const;
  /// Index of each parameter's group, parallel to parameters().
  virtual std::vector<std::size_t> groups() const;
  /// Base learning rate of a group, before the schedule's factor. @throws ConfigError no such group.
  virtual double lr(std::size_t group = 0) const = 0;
  virtual void set_lr(double lr, std::size_t group = 0) = 0;

  /// Gives parameters their names (the Trainer passes the model's); unnamed ones are "parameter.<index>".
  virtual void name_parameters(const NamedTensors& named) = 0;
  virtual OptimizerState state() const = 0;
  /// Replaces all state. @throws StateError names, shapes or dtypes differ; nothing has been changed then.
  virtual void load_state(const OptimizerState& state) = 0;

  /// What state() holds, and what is still to come. The default knows only the first.
  virtual StateBytes state_bytes() const;

  /// Whether `found_inf` costs no host read.
  virtual bool refuses_on_device() const { return true; }

 protected:
  Optimizer() = default;
  Optimizer(Optimizer&&) = default;
  Optimizer& operator=(Optimizer&&) = default;
};

}  // namespace saturate::optim
