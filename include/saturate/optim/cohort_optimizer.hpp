// SPDX-License-Identifier: Apache-2.0
// The common part of saturate's optimizers: groups and their options, state by name, parameters that get no gradient.
#pragma once

#include "saturate/optim/optimizer.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace saturate::optim {

/// Options by name ("lr", "beta1", ...); flags are 0 or 1.
using Options = std::map<std::string, double>;

/// Parameters with options of their own; what is not set is inherited from the optimizer's options.
struct ParamGroup {
  std::vector<at::Tensor> params;
  std::optional<double> lr = {};
  std::optional<double> weight_decay = {};
  Options more = {};  ///< any other option of the method: {{"beta2", 0.95}}
};

/// What a method is: given once by each optimizer to CohortOptimizer.
struct Method {
  enum class Range { not_negative, below_one, flag };  // finite and >= 0; [0, 1); 0 or 1
  struct Option {
    std::string name;
    double value;  // of the groups that do not set it
    Range range;
  };

  std::string type;             // "AdamW"
  std::vector<Option> options;  // all of them, "lr" and "weight_decay" too
  std::vector<std::string> (*state_names)(const Options&);
  /// The option that StepArgs::momentum replaces, where it is not 0; empty: none.
  std::string momentum = {};
  /// Value that a state tensor starts with; null: 0.
  double (*initial_value)(const std::string& state_name, const Options&) = nullptr;
  /// What ranges cannot say; returns the complaint, or nothing. Null: none.
  std::string (*check)(const Options&) = nullptr;
};

/// Parameters that took part in the same steps so far: they share one step number, so that two thousand of them cost
/// one increment and one kernel call. A part that gets no gradient one day leaves with a step number of its own.
struct Cohort {
  std::size_t group = 0;
  std::vector<std::size_t> members;            // indices into CohortOptimizer::parameters()
  std::vector<at::Tensor> params;              // the members' tensors
  std::vector<std::vector<at::Tensor>> state;  // one list per state name of the group, parallel to params
  at::Tensor step;                             // 0-dim float32 on the device; undefined before the first step
  std::vector<at::Tensor> steps;               // `step`, once per member: the form the fused kernels take
};

/// One call of a kernel.
struct KernelArgs {
  double lr = 0;         // the group's, with the schedule's factor
  at::Tensor lr_tensor;  // wins when defined: the factor is known on the device alone
  std::optional<at::Tensor> found_inf;
  Options options;  // the group's, with this step's momentum

  double operator[](const char* name) const { return options.at(name); }
  bool flag(const char* name) const { return options.at(name) != 0; }
};

class CohortOptimizer : public Optimizer {
 public:
  using Optimizer::step;
  /// @throws ConfigError before anything changes: a sparse gradient, one of another dtype or device; a momentum that
  ///   the method cannot take.
  void step(const StepArgs& args) final;
  void zero_grad(bool set_to_none = true) final;
  std::vector<at::Tensor> parameters() const final { return params_; }
  std::vector<std::size_t> groups() const final { return group_of_; }
  double lr(std::size_t group = 0) const final;
  void set_lr(double lr, std::size_t group = 0) final;
  void name_parameters(const NamedTensors& named) final;
  OptimizerState state() const final;
  void load_state(const OptimizerState& state) final;
  StateBytes state_bytes() const final;

 protected:
  /// @throws ConfigError no parameters, an undefined one, one of a dtype, on a device or in a layout that cannot be
  ///   trained here; a parameter in two groups; an unknown option, or one out of its range.
  CohortOptimizer(Method method, const std::vector<ParamGroup>& groups);

  /// Updates params and state; `cohort.step` counts this step already. With found_inf 1 it must change nothing.
  virtual void apply(Cohort& cohort, at::TensorList grads, const KernelArgs& args) = 0;

 private:
  Options resolve(const ParamGroup& group) const;
  std::string complaint(const Options& options) const;
  void make_cohorts();
  void check_gradients() const;
  void check_momentum(const StepArgs& args) const;
  void split_idle_members();
  void start(Cohort& cohort);
  void gather(Cohort& cohort, std::vector<at::Tensor>& grads);
  KernelArgs kernel_args(const Cohort& cohort, const StepArgs& args) const;
  void check_saved(const OptimizerState& saved) const;
  void check_saved_parameter(std::size_t index, const OptimizerState& saved) const;
  Cohort restored(std::size_t group, std::vector<std::size_t> members, const OptimizerState& saved) const;

  Method method_;
  std::vector<Options> groups_;
  std::vector<at::Tensor> params_;
  std::vector<std::string> names_;
  std::vector<std::size_t> group_of_;
  std::vector<Cohort> cohorts_;
};

}  // namespace saturate::optim
