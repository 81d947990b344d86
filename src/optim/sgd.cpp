// SPDX-License-Identifier: Apache-2.0
#include "saturate/optim/sgd.hpp"

#include "saturate/error.hpp"

#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/where.h>
#include <c10/util/StringUtil.h>

#include <cmath>

namespace saturate::optim {
namespace {

std::vector<std::string> state_names(const SGDOptions& options) {
  if (options.momentum == 0) return {};
  return {"momentum_buffer"};
}

void check(const SGDOptions& options) {
  const auto not_negative = [](const char* name, double value) {
    if (!std::isfinite(value) || value < 0) {
      throw ConfigError(c10::str("SGD: ", name, " is ", value, "; give a finite value of 0 or more"));
    }
  };
  not_negative("momentum", options.momentum);
  not_negative("dampening", options.dampening);
  if (options.nesterov && (options.momentum == 0 || options.dampening != 0)) {
    throw ConfigError(c10::str("SGD: nesterov needs momentum above 0 (", options.momentum, ") and no dampening (",
                               options.dampening, ")"));
  }
}

// The kernel is never told "first step": with a step that may be refused on the device, only the device knows. A buffer
// of zeros gives the same first update, (1 - dampening) * gradient, unless there is dampening: then LibTorch starts the
// buffer with the whole gradient, and this puts dampening / momentum * gradient there in advance.
void prime_buffers(Cohort& cohort, at::TensorList grads, const SGDOptions& options, const KernelArgs& args) {
  at::Tensor first = cohort.step == 1;  // already counted, taken back if the step is refused
  if (args.found_inf) first = first.logical_and(*args.found_inf == 0);
  const double sign = options.maximize ? -1.0 : 1.0;
  for (std::size_t i = 0; i < grads.size(); ++i) {
    at::Tensor& buffer = cohort.state[0][i];
    const at::Tensor whole = grads[i] * sign + cohort.params[i] * args.weight_decay;
    buffer.copy_(at::where(first, whole * (options.dampening / options.momentum), buffer));
  }
}

}  // namespace

SGD::SGD(std::vector<at::Tensor> params, const SGDOptions& options)
    : SGD(std::vector<ParamGroup>{{std::move(params), {}, {}}}, options) {}

SGD::SGD(std::vector<ParamGroup> groups, const SGDOptions& options)
    : FusedOptimizer("SGD", state_names(options), std::move(groups), {options.lr, options.weight_decay}),
      options_(options) {
  check(options_);
}

void SGD::apply(Cohort& cohort, at::TensorList grads, const KernelArgs& args) {
  const bool has_momentum = options_.momentum != 0;
  if (has_momentum && options_.dampening != 0) prime_buffers(cohort, grads, options_, args);
  const at::TensorList buffers = has_momentum ? at::TensorList(cohort.state[0]) : at::TensorList();
  const auto run = [&](const auto& lr) {
    at::_fused_sgd_(cohort.params, grads, buffers, args.weight_decay, options_.momentum, lr, options_.dampening,
                    options_.nesterov, options_.maximize, /*is_first_step=*/false, std::nullopt, args.found_inf);
  };
  if (args.lr_tensor.defined()) {
    run(args.lr_tensor);
  } else {
    run(args.lr);
  }
}

std::map<std::string, double> SGD::options() const {
  return {{"momentum", options_.momentum},
          {"dampening", options_.dampening},
          {"nesterov", options_.nesterov ? 1.0 : 0.0},
          {"maximize", options_.maximize ? 1.0 : 0.0}};
}

}  // namespace saturate::optim
