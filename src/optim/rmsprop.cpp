// SPDX-License-Identifier: Apache-2.0
#include "saturate/optim/rmsprop.hpp"

#include "cpu_kernel.hpp"
#include "foreach.hpp"
#include "loops.hpp"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>

namespace saturate::optim {
namespace {

using Range = Method::Range;

std::vector<std::string> state_names(const Options& group) {
  std::vector<std::string> names{"square_avg"};
  if (group.at("centered") != 0) names.push_back("grad_avg");
  if (group.at("momentum") != 0) names.push_back("momentum_buffer");
  return names;
}

Method method(const RMSpropOptions& options) {
  return {.type = "RMSprop",
          .options = {{"lr", options.lr, Range::not_negative},
                      {"alpha", options.alpha, Range::below_one},
                      {"eps", options.eps, Range::not_negative},
                      {"weight_decay", options.weight_decay, Range::not_negative},
                      {"momentum", options.momentum, Range::not_negative},
                      {"centered", options.centered ? 1.0 : 0.0, Range::flag},
                      {"maximize", options.maximize ? 1.0 : 0.0, Range::flag}},
          .state_names = state_names,
          .momentum = "momentum"};
}

void run_on_cpu(Cohort& cohort, at::TensorList grads, const KernelArgs& args) {
  if (cpu::refused(args)) return;
  const bool centered = args.flag("centered");
  cpu::dispatch(cohort, [&]<class T>(T) {
    const loops::RMSprop<T> c{.lr = static_cast<T>(args.lr),
                              .alpha = static_cast<T>(args["alpha"]),
                              .one_minus_alpha = static_cast<T>(1 - args["alpha"]),
                              .eps = static_cast<T>(args["eps"]),
                              .weight_decay = static_cast<T>(args["weight_decay"]),
                              .momentum = static_cast<T>(args["momentum"]),
                              .sign = static_cast<T>(args.flag("maximize") ? -1 : 1)};
    const cpu::Pointers<T> pointers(cohort, grads);
    cpu::Blocks(cohort.params).run([&](const cpu::Block& block) {
      const auto x = pointers[block];
      loops::best<T>().rmsprop(c, block.size, x.p, x.g, x.state[0], centered ? x.state[1] : nullptr,
                               x.state[centered ? 2 : 1]);
    });
  });
}

void run_foreach(Cohort& cohort, at::TensorList grads, const KernelArgs& args) {
  foreach
    ::Gate gate(cohort, args);
  const double alpha = args["alpha"];
  const auto g = foreach::descent(cohort, grads, args, args["weight_decay"]);
  const auto& square_avg = cohort.state[0];
  at::_foreach_mul_(square_avg, alpha);
  at::_foreach_addcmul_(square_avg, g, g, 1 - alpha);
  std::vector<at::Tensor> root;
  if (args.flag("centered")) {
    const auto& grad_avg = cohort.state[1];
    at::_foreach_lerp_(grad_avg, g, 1 - alpha);
    root = at::_foreach_addcmul(square_avg, grad_avg, grad_avg, -1);
    at::_foreach_clamp_min_(root, 0);
    at::_foreach_sqrt_(root);
  } else {
    root = at::_foreach_sqrt(square_avg);
  }
  at::_foreach_add_(root, args["eps"]);
  if (args["momentum"] != 0) {
    const auto& buffer = cohort.state.back();
    at::_foreach_mul_(buffer, args["momentum"]);
    at::_foreach_addcdiv_(buffer, g, root);
    foreach
      ::subtract(cohort.params, buffer, args);
  } else {
    foreach
      ::subtract(cohort.params, at::_foreach_div(g, root), args);
  }
  gate.close();
}

}  // namespace

RMSprop::RMSprop(std::vector<at::Tensor> params, const RMSpropOptions& options)
    : RMSprop(std::vector<ParamGroup>{{.params = std::move(params)}}, options) {}

RMSprop::RMSprop(std::vector<ParamGroup> groups, const RMSpropOptions& options)
    : CohortOptimizer(method(options), groups) {}

void RMSprop::apply(Cohort& cohort, at::TensorList grads, const KernelArgs& args) {
  cpu::serves(cohort) ? run_on_cpu(cohort, grads, args) : run_foreach(cohort, grads, args);
}

}  // namespace saturate::optim
