// SPDX-License-Identifier: Apache-2.0
#include "saturate/optim/adam.hpp"

#include "cpu_kernel.hpp"
#include "loops.hpp"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>

#include <cmath>

namespace saturate::optim {
namespace {

using Range = Method::Range;

Method with_choice_of_decay(Method method, bool decoupled) {
  method.options.push_back({"decoupled_weight_decay", decoupled ? 1.0 : 0.0, Range::flag});
  return method;
}

bool decoupled(const KernelArgs& args) {
  return !args.options.contains("decoupled_weight_decay") || args.flag("decoupled_weight_decay");
}

void run_fused(Cohort& cohort, at::TensorList grads, const KernelArgs& args) {
  const bool amsgrad = args.flag("amsgrad");
  const at::TensorList largest = amsgrad ? at::TensorList(cohort.state[2]) : at::TensorList();
  const auto run = [&](const auto& lr) {
    const auto kernel = [&](auto&& fused) {
      fused(cohort.params, grads, cohort.state[0], cohort.state[1], largest, cohort.steps, lr, args["beta1"],
            args["beta2"], args["weight_decay"], args["eps"], amsgrad, args.flag("maximize"), std::nullopt,
            args.found_inf);
    };
    if (decoupled(args)) {
      kernel([](auto&&... x) { at::_fused_adamw_(x...); });
    } else {
      kernel([](auto&&... x) { at::_fused_adam_(x...); });
    }
  };
  if (args.lr_tensor.defined()) {
    run(args.lr_tensor);
  } else {
    run(args.lr);
  }
}

void run_on_cpu(Cohort& cohort, at::TensorList grads, const KernelArgs& args) {
  if (cpu::refused(args)) return;
  const double beta1 = args["beta1"], beta2 = args["beta2"], decay = args["weight_decay"];
  const double step = cpu::step_number(cohort);
  cpu::dispatch(cohort, [&]<class T>(T) {
    const loops::Adam<T> c{.one_minus_beta1 = static_cast<T>(1 - beta1),
                           .beta2 = static_cast<T>(beta2),
                           .one_minus_beta2 = static_cast<T>(1 - beta2),
                           .eps = static_cast<T>(args["eps"]),
                           .sign = static_cast<T>(args.flag("maximize") ? -1 : 1),
                           .coupled_decay = static_cast<T>(decoupled(args) ? 0 : decay),
                           .shrink = static_cast<T>(decoupled(args) ? 1 - args.lr * decay : 1),
                           .step = static_cast<T>(args.lr / (1 - std::pow(beta1, step))),
                           .correction2 = static_cast<T>(1 / std::sqrt(1 - std::pow(beta2, step)))};
    const cpu::Pointers<T> pointers(cohort, grads);
    cpu::Blocks(cohort.params).run([&](const cpu::Block& block) {
      const auto x = pointers[block];
      loops::best<T>().adam(c, block.size, x.p, x.g, x.state[0], x.state[1], x.state[2]);
    });
  });
}

}  // namespace

Method Adam::method(std::string type, const AdamOptions& options) {
  const auto state_names = [](const Options& group) {
    std::vector<std::string> names{"exp_avg", "exp_avg_sq"};
    if (group.at("amsgrad") != 0) names.push_back("max_exp_avg_sq");
    return names;
  };
  return {.type = std::move(type),
          .options = {{"lr", options.lr, Range::not_negative},
                      {"beta1", options.beta1, Range::below_one},
                      {"beta2", options.beta2, Range::below_one},
                      {"eps", options.eps, Range::not_negative},
                      {"weight_decay", options.weight_decay, Range::not_negative},
                      {"amsgrad", options.amsgrad ? 1.0 : 0.0, Range::flag},
                      {"maximize", options.maximize ? 1.0 : 0.0, Range::flag}},
          .state_names = state_names,
          .momentum = "beta1"};
}

Adam::Adam(std::vector<at::Tensor> params, const AdamOptions& options)
    : Adam(std::vector<ParamGroup>{{.params = std::move(params)}}, options) {}

Adam::Adam(std::vector<ParamGroup> groups, const AdamOptions& options)
    : Adam(with_choice_of_decay(method("Adam", options), options.decoupled_weight_decay), groups) {}

void Adam::apply(Cohort& cohort, at::TensorList grads, const KernelArgs& args) {
  cpu::by_size(
      cohort, grads, [&](Cohort& part, at::TensorList of_part) { run_on_cpu(part, of_part, args); },
      [&](Cohort& part, at::TensorList of_part) { run_fused(part, of_part, args); });
}

}  // namespace saturate::optim
