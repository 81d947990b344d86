// SPDX-License-Identifier: Apache-2.0
#include "saturate/optim/lion.hpp"

#include "cpu_kernel.hpp"
#include "foreach.hpp"
#include "loops.hpp"

#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_sign.h>

namespace saturate::optim {
namespace {

using Range = Method::Range;

Method method(const LionOptions& options) {
  return {.type = "Lion",
          .options = {{"lr", options.lr, Range::not_negative},
                      {"beta1", options.beta1, Range::below_one},
                      {"beta2", options.beta2, Range::below_one},
                      {"weight_decay", options.weight_decay, Range::not_negative},
                      {"maximize", options.maximize ? 1.0 : 0.0, Range::flag}},
          .state_names = [](const Options&) { return std::vector<std::string>{"exp_avg"}; },
          .momentum = "beta1"};
}

void run_on_cpu(Cohort& cohort, at::TensorList grads, const KernelArgs& args) {
  if (cpu::refused(args)) return;
  cpu::dispatch(cohort, [&]<class T>(T) {
    const loops::Lion<T> c{.lr = static_cast<T>(args.lr),
                           .shrink = static_cast<T>(1 - args.lr * args["weight_decay"]),
                           .one_minus_beta1 = static_cast<T>(1 - args["beta1"]),
                           .one_minus_beta2 = static_cast<T>(1 - args["beta2"]),
                           .sign = static_cast<T>(args.flag("maximize") ? -1 : 1)};
    const cpu::Pointers<T> pointers(cohort, grads);
    cpu::Blocks(cohort.params).run([&](const cpu::Block& block) {
      const auto x = pointers[block];
      loops::best<T>().lion(c, block.size, x.p, x.g, x.state[0]);
    });
  });
}

void run_foreach(Cohort& cohort, at::TensorList grads, const KernelArgs& args) {
  foreach
    ::Gate gate(cohort, args);
  const auto g = foreach::descent(cohort, grads, args, 0);
  auto direction = at::_foreach_lerp(cohort.state[0], g, 1 - args["beta1"]);
  at::_foreach_sign_(direction);
  foreach
    ::decay(cohort.params, args);
  foreach
    ::subtract(cohort.params, direction, args);
  at::_foreach_lerp_(cohort.state[0], g, 1 - args["beta2"]);
  gate.close();
}

}  // namespace

Lion::Lion(std::vector<at::Tensor> params, const LionOptions& options)
    : Lion(std::vector<ParamGroup>{{.params = std::move(params)}}, options) {}

Lion::Lion(std::vector<ParamGroup> groups, const LionOptions& options) : CohortOptimizer(method(options), groups) {}

void Lion::apply(Cohort& cohort, at::TensorList grads, const KernelArgs& args) {
  cpu::serves(cohort) ? run_on_cpu(cohort, grads, args) : run_foreach(cohort, grads, args);
}

}  // namespace saturate::optim
