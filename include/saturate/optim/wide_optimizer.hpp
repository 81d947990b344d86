// SPDX-License-Identifier: Apache-2.0
// The common part of MasterWeights and StochasticRounding: an optimizer of any kind steps in float32 for half-precision
// parameters.
#pragma once

#include "saturate/optim/cohort_optimizer.hpp"
#include "saturate/optim/torch_optimizer.hpp"

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace saturate::optim {

/// Parameters of float32 or wider in the same model are stepped on as they are.
///
/// Gradients are summed in float32: gather_gradients(), after each backward, moves param.grad() there. step() and
/// gradients() do it too, so a loop by hand without accumulation needs no call.
class WideOptimizer : public Optimizer {
 public:
  using Optimizer::step;
  void step(const StepArgs& args) final;
  void zero_grad(bool set_to_none = true) final;
  std::vector<at::Tensor> parameters() const final;
  /// @throws ConfigError a sparse gradient.
  void gather_gradients() final;
  std::vector<at::Tensor> gradients() const final;
  std::vector<std::size_t> groups() const final { return inner_->groups(); }
  double lr(std::size_t group = 0) const final { return inner_->lr(group); }
  void set_lr(double lr, std::size_t group = 0) final { inner_->set_lr(lr, group); }
  void name_parameters(const NamedTensors& named) final;
  StateBytes state_bytes() const final;
  bool refuses_on_device() const final { return inner_->refuses_on_device(); }

 protected:
  struct Pair {
    at::Tensor param;
    at::Tensor wide;  // a float32 leaf; `param` itself where that is wide enough
    std::string name;
    bool widened() const { return !wide.is_same(param); }
  };

  explicit WideOptimizer(std::string type) : type_(std::move(type)) {}
  /// Makes the inner optimizer over float32 copies.
  template <class Make>
  void make_inner(const std::vector<at::Tensor>& params, Make&& make) {
    attach(detail::own(std::forward<Make>(make)(widen(params))));
  }
  template <class Make>
  void make_inner(std::vector<ParamGroup> groups, Make&& make) {
    for (ParamGroup& group : groups) group.params = widen(group.params);
    attach(detail::own(std::forward<Make>(make)(std::move(groups))));
  }

  /// Before and after the inner step; not called for a step that the host knows to be refused. `restore` comes also
  /// when the step threw.
  virtual void prepare() = 0;
  virtual void write_back() = 0;
  virtual void restore() {}

  Optimizer& inner() { return *inner_; }
  const Optimizer& inner() const { return *inner_; }
  const std::vector<Pair>& pairs() const { return pairs_; }
  std::string state_type(const OptimizerState& inner) const { return type_ + "(" + inner.type + ")"; }
  [[noreturn]] void refuse_state(const std::string& what) const;
  const std::string& type() const { return type_; }

 private:
  std::vector<at::Tensor> widen(const std::vector<at::Tensor>& params);
  void attach(std::shared_ptr<Optimizer> inner);

  std::string type_;
  std::shared_ptr<Optimizer> inner_;
  std::vector<Pair> pairs_;
};

}  // namespace saturate::optim
