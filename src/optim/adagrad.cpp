// SPDX-License-Identifier: Apache-2.0
#include "saturate/optim/adagrad.hpp"

#include "cpu_kernel.hpp"
#include "loops.hpp"

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

void run_fused(Cohort& cohort, at::TensorList grads, const KernelArgs& args) {
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

void run_on_cpu(Cohort& cohort, at::TensorList grads, const KernelArgs& args) {
  if (cpu::refused(args)) return;
  const double lr = args.lr / (1 + (cpu::step_number(cohort) - 1) * args["lr_decay"]);
  cpu::dispatch(cohort, [&]<class T>(T) {
    const loops::Adagrad<T> c{.lr = static_cast<T>(lr),
                              .eps = static_cast<T>(args["eps"]),
                              .weight_decay = static_cast<T>(args["weight_decay"]),
                              .sign = static_cast<T>(args.flag("maximize") ? -1 : 1)};
    const cpu::Pointers<T> pointers(cohort, grads);
    cpu::Blocks(cohort.params).run([&](const cpu::Block& block) {
      const auto x = pointers[block];
      loops::best<T>().adagrad(c, block.size, x.p, x.g, x.state[0]);
    });
  });
}

}  // namespace

Adagrad::Adagrad(std::vector<at::Tensor> params, const AdagradOptions& options)
    : Adagrad(std::vector<ParamGroup>{{.params = std::move(params)}}, options) {}

Adagrad::Adagrad(std::vector<ParamGroup> groups, const AdagradOptions& options)
    : CohortOptimizer(method(options), groups) {}

void Adagrad::apply(Cohort& cohort, at::TensorList grads, const KernelArgs& args) {
  cpu::by_size(
      cohort, grads, [&](Cohort& part, at::TensorList of_part) { run_on_cpu(part, of_part, args); },
      [&](Cohort& part, at::TensorList of_part) { run_fused(part, of_part, args); });
}

}  // namespace saturate::optim
