// SPDX-License-Identifier: Apache-2.0
#include "saturate/optim/adagrad.hpp"

#include <ATen/ops/_fused_adagrad.h>

namespace saturate::optim {
namespace {

using Range = Method::Range;

Method method(const AdagradOptions& options) {
  return {
      .type = "Adagrad",
      .options = {{"lr", options.lr, Range::not_negative},
                  {"lr_decay", options.lr_decay, Range::not_negative},
                  {"weight_decay", options.weight_decay, Range::not_negative},
                  {"initial_accumulator_value", options.initial_accumulator_value, Range::not_negative},
                  {"eps", options.eps, Range::not_negative},
                  {"maximize", options.maximize ? 1.0 : 0.0, Range::flag}},
      .state_names = [](const Options&) { return std::vector<std::string>{"sum"}; },
      .initial_value = [](const std::string&, const Options& group) { return group.at("initial_accumulator_value"); }};
}

}  // namespace

Adagrad::Adagrad(std::vector<at::Tensor> params, const AdagradOptions& options)
    : Adagrad(std::vector<ParamGroup>{{.params = std::move(params)}}, options) {}

Adagrad::Adagrad(std::vector<ParamGroup> groups, const AdagradOptions& options)
    : CohortOptimizer(method(options), groups) {}

void Adagrad::apply(Cohort& cohort, at::TensorList grads, const KernelArgs& args) {
  const auto run = [&](const auto& lr) {
    at::_fused_adagrad_(cohort.params, grads, cohort.state[0], cohort.steps, lr, args["lr_decay"], args["weight_decay"],
                        args["eps"], args.flag("maximize"), std::nullopt, args.found_inf);
  };
  if (args.lr_tensor.defined()) {
    run(args.lr_tensor);
  } else {
    run(args.lr);
  }
}

}  // namespace saturate::optim
