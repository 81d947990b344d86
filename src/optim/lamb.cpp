// SPDX-License-Identifier: Apache-2.0
#include "saturate/optim/lamb.hpp"

#include "cpu_kernel.hpp"
#include "foreach.hpp"
#include "loops.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>

#include <cmath>

namespace saturate::optim {
namespace {

using Range = Method::Range;

Method method(const LAMBOptions& options) {
  return {.type = "LAMB",
          .options = {{"lr", options.lr, Range::not_negative},
                      {"beta1", options.beta1, Range::below_one},
                      {"beta2", options.beta2, Range::below_one},
                      {"eps", options.eps, Range::not_negative},
                      {"weight_decay", options.weight_decay, Range::not_negative},
                      {"adapt_undecayed", options.adapt_undecayed ? 1.0 : 0.0, Range::flag},
                      {"maximize", options.maximize ? 1.0 : 0.0, Range::flag}},
          .state_names =
              [](const Options&) {
                return std::vector<std::string>{"exp_avg", "exp_avg_sq"};
              },
          .momentum = "beta1"};
}

bool adapts(const KernelArgs& args) { return args["weight_decay"] != 0 || args.flag("adapt_undecayed"); }

template <class T>
void run_on_cpu(Cohort& cohort, at::TensorList grads, const KernelArgs& args) {
  const double beta1 = args["beta1"], beta2 = args["beta2"], step = cpu::step_number(cohort);
  const loops::LAMB<T> c{.one_minus_beta1 = static_cast<T>(1 - beta1),
                         .beta2 = static_cast<T>(beta2),
                         .one_minus_beta2 = static_cast<T>(1 - beta2),
                         .eps = static_cast<T>(args["eps"]),
                         .weight_decay = static_cast<T>(args["weight_decay"]),
                         .sign = static_cast<T>(args.flag("maximize") ? -1 : 1),
                         .correction1 = static_cast<T>(1 / (1 - std::pow(beta1, step))),
                         .correction2 = static_cast<T>(1 / std::sqrt(1 - std::pow(beta2, step)))};
  const cpu::Pointers<T> pointers(cohort, grads);
  const cpu::Blocks blocks(cohort.params);
  std::vector<double> p2(blocks.count()), u2(blocks.count());
  blocks.run([&](const cpu::Block& block) {
    const auto x = pointers[block];
    const loops::Squares sums = loops::best<T>().lamb_moments(c, block.size, x.p, x.g, x.state[0], x.state[1]);
    p2[block.index] = sums.first;
    u2[block.index] = sums.second;
  });
  std::vector<double> lr = blocks.per_tensor(p2);
  const std::vector<double> u2_of_tensor = blocks.per_tensor(u2);
  for (std::size_t i = 0; i < lr.size(); ++i) {
    // "not 0", so that a NaN passes and is seen in the parameters.
    const bool scaled = adapts(args) && lr[i] != 0 && u2_of_tensor[i] != 0;
    lr[i] = args.lr * (scaled ? std::sqrt(lr[i] / u2_of_tensor[i]) : 1.0);
  }
  blocks.run([&](const cpu::Block& block) {
    const auto x = pointers[block];
    loops::best<T>().lamb_step(c, static_cast<T>(lr[block.tensor]), block.size, x.p, x.state[0], x.state[1]);
  });
}

void run_foreach(Cohort& cohort, at::TensorList grads, const KernelArgs& args) {
  foreach
    ::Gate gate(cohort, args);
  const double beta1 = args["beta1"], beta2 = args["beta2"];
  const auto g = foreach::descent(cohort, grads, args, 0);
  at::_foreach_lerp_(cohort.state[0], g, 1 - beta1);
  at::_foreach_mul_(cohort.state[1], beta2);
  at::_foreach_addcmul_(cohort.state[1], g, g, 1 - beta2);
  // The number of the step may be known on the device alone.
  const at::Tensor step = cohort.step.to(at::kDouble);
  const at::ScalarType dtype = cohort.params[0].scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor correction1 = (1 - at::pow(beta1, step)).to(dtype);
  const at::Tensor correction2 = (1 - at::pow(beta2, step)).sqrt().to(dtype);
  auto root = at::_foreach_sqrt(cohort.state[1]);
  at::_foreach_div_(root, correction2);
  at::_foreach_add_(root, args["eps"]);
  auto u = at::_foreach_div(cohort.state[0], correction1);
  at::_foreach_div_(u, root);
  if (args["weight_decay"] != 0) at::_foreach_add_(u, cohort.params, args["weight_decay"]);
  if (adapts(args)) {
    const at::Tensor p_norm = foreach::norms(cohort.params), u_norm = foreach::norms(u);
    const at::Tensor usable = (p_norm != 0).logical_and(u_norm != 0);
    foreach
      ::scale_each(u, at::where(usable, p_norm / u_norm, 1.0));
  }
  foreach
    ::subtract(cohort.params, u, args);
  gate.close();
}

}  // namespace

LAMB::LAMB(std::vector<at::Tensor> params, const LAMBOptions& options)
    : LAMB(std::vector<ParamGroup>{{.params = std::move(params)}}, options) {}

LAMB::LAMB(std::vector<ParamGroup> groups, const LAMBOptions& options) : CohortOptimizer(method(options), groups) {}

void LAMB::apply(Cohort& cohort, at::TensorList grads, const KernelArgs& args) {
  if (!cpu::serves(cohort)) return run_foreach(cohort, grads, args);
  if (cpu::refused(args)) return;
  cpu::dispatch(cohort, [&]<class T>(T) { run_on_cpu<T>(cohort, grads, args); });
}

}  // namespace saturate::optim
