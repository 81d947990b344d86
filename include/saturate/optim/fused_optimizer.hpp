// SPDX-License-Identifier: Apache-2.0
// The common part of the optimizers on LibTorch's fused kernels: groups, state by name, parameters that get no
// gradient.
#pragma once

#include "saturate/optim/optimizer.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace saturate::optim {

/// Parameters with options of their own; what is not set is inherited from the optimizer's options.
struct ParamGroup {
  std::vector<at::Tensor> params;
  std::optional<double> lr;
  std::optional<double> weight_decay;
};

/// Parameters that took part in the same steps so far: they share one step number, so that two thousand of them cost
/// one increment and one kernel call. A part that gets no gradient one day leaves with a step number of its own.
struct Cohort {
  std::size_t group = 0;
  std::vector<std::size_t> members;            // indices into FusedOptimizer::parameters()
  std::vector<at::Tensor> params;              // the members' tensors
  std::vector<std::vector<at::Tensor>> state;  // one list per name in state_names(), parallel to params
  at::Tensor step;                             // 0-dim float32 on the device; undefined before the first step
  std::vector<at::Tensor> steps;               // `step`, once per member: the form the kernels take
};

/// One call of a kernel.
struct KernelArgs {
  double lr = 0;
  at::Tensor lr_tensor;  // wins when defined
  double weight_decay = 0;
  std::optional<at::Tensor> found_inf;
};

class FusedOptimizer : public Optimizer {
 public:
  using Optimizer::step;
  /// @throws ConfigError before anything changes: a sparse gradient, one of another dtype or device.
  void step(const StepArgs& args) final;
  void zero_grad(bool set_to_none = true) final;
  std::vector<at::Tensor> parameters() const final { return params_; }
  double lr(std::size_t group = 0) const final;
  void set_lr(double lr, std::size_t group = 0) final;
  void name_parameters(const NamedTensors& named) final;
  OptimizerState state() const final;
  void load_state(const OptimizerState& state) final;

 protected:
  struct Group {
    double lr = 0;
    double weight_decay = 0;
  };

  /// @throws ConfigError no parameters, an undefined one, one on a device or of a dtype without fused kernels, a
  ///   negative or non-finite option.
  FusedOptimizer(std::string type, std::vector<std::string> state_names, std::vector<ParamGroup> groups,
                 Group defaults);

  virtual void apply(Cohort& cohort, at::TensorList grads, const KernelArgs& args) = 0;
  /// Options beside lr and weight decay, for state().
  virtual std::map<std::string, double> options() const = 0;

 private:
  void gather(Cohort& cohort, std::vector<at::Tensor>& grads);
  void split_idle_members();
  void start(Cohort& cohort);
  Cohort take(const Cohort& from, const std::vector<std::size_t>& positions) const;
  void check_gradients() const;
  Cohort restored(std::size_t group, std::vector<std::size_t> members, const OptimizerState& saved) const;

  std::string type_;
  std::vector<std::string> state_names_;
  std::vector<at::Tensor> params_;
  std::vector<std::string> names_;
  std::vector<std::size_t> group_of_;
  std::vector<Group> groups_;
  std::vector<Cohort> cohorts_;
};

}  // namespace saturate::optim
