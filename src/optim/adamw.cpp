// SPDX-License-Identifier: Apache-2.0
#include "saturate/optim/adamw.hpp"

#include "saturate/error.hpp"

#include <ATen/ops/_fused_adamw.h>
#include <c10/util/StringUtil.h>

#include <cmath>

namespace saturate::optim {
namespace {

std::vector<std::string> state_names(const AdamWOptions& options) {
  if (options.amsgrad) return {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
  return {"exp_avg", "exp_avg_sq"};
}

void check(const AdamWOptions& options) {
  const auto beta = [](const char* name, double value) {
    if (!(value >= 0 && value < 1)) {
      throw ConfigError(c10::str("AdamW: ", name, " is ", value, "; it must lie in [0, 1)"));
    }
  };
  beta("beta1", options.beta1);
  beta("beta2", options.beta2);
  if (!std::isfinite(options.eps) || options.eps < 0) {
    throw ConfigError(c10::str("AdamW: eps is ", options.eps, "; give a finite value of 0 or more"));
  }
}

}  // namespace

AdamW::AdamW(std::vector<at::Tensor> params, const AdamWOptions& options)
    : AdamW(std::vector<ParamGroup>{{std::move(params), {}, {}}}, options) {}

AdamW::AdamW(std::vector<ParamGroup> groups, const AdamWOptions& options)
    : FusedOptimizer("AdamW", state_names(options), std::move(groups), {options.lr, options.weight_decay}),
      options_(options) {
  check(options_);
}

void AdamW::apply(Cohort& cohort, at::TensorList grads, const KernelArgs& args) {
  const at::TensorList max_exp_avg_sqs = options_.amsgrad ? at::TensorList(cohort.state[2]) : at::TensorList();
  const auto run = [&](const auto& lr) {
    at::_fused_adamw_(cohort.params, grads, cohort.state[0], cohort.state[1], max_exp_avg_sqs, cohort.steps, lr,
                      options_.beta1, options_.beta2, args.weight_decay, options_.eps, options_.amsgrad,
                      options_.maximize, std::nullopt, args.found_inf);
  };
  if (args.lr_tensor.defined()) {
    run(args.lr_tensor);
  } else {
    run(args.lr);
  }
}

std::map<std::string, double> AdamW::options() const {
  return {{"beta1", options_.beta1},
          {"beta2", options_.beta2},
          {"eps", options_.eps},
          {"amsgrad", options_.amsgrad ? 1.0 : 0.0},
          {"maximize", options_.maximize ? 1.0 : 0.0}};
}

}  // namespace saturate::optim
