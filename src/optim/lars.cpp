// SPDX-License-Identifier: Apache-2.0
#include "saturate/optim/lars.hpp"

#include "cpu_kernel.hpp"
#include "foreach.hpp"
#include "loops.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/where.h>

#include <cmath>

namespace saturate::optim {
namespace {

using Range = Method::Range;

std::vector<std::string> state_names(const Options& group) {
  if (group.at("momentum") == 0) return {};
  return {"momentum_buffer"};
}

Method method(const LARSOptions& options) {
  return {.type = "LARS",
          .options = {{"lr", options.lr, Range::not_negative},
                      {"momentum", options.momentum, Range::not_negative},
                      {"weight_decay", options.weight_decay, Range::not_negative},
                      {"trust_coefficient", options.trust_coefficient, Range::not_negative},
                      {"eps", options.eps, Range::not_negative},
                      {"adapt_undecayed", options.adapt_undecayed ? 1.0 : 0.0, Range::flag},
                      {"maximize", options.maximize ? 1.0 : 0.0, Range::flag}},
          .state_names = state_names,
          .momentum = "momentum"};
}

bool adapts(const KernelArgs& args) { return args["weight_decay"] != 0 || args.flag("adapt_undecayed"); }

// The learning rate of each tensor.
template <class T>
std::vector<double> rates(const cpu::Blocks& blocks, const cpu::Pointers<T>& pointers, std::size_t tensors,
                          const KernelArgs& args) {
  if (!adapts(args)) return std::vector<double>(tensors, args.lr);
  std::vector<double> p2(blocks.count()), g2(blocks.count());
  blocks.run([&](const cpu::Block& block) {
    const auto x = pointers[block];
    const loops::Squares sums = loops::best<T>().lars_squares(block.size, x.p, x.g);
    p2[block.index] = sums.first;
    g2[block.index] = sums.second;
  });
  std::vector<double> result = blocks.per_tensor(p2);
  const std::vector<double> of_gradients = blocks.per_tensor(g2);
  for (std::size_t i = 0; i < tensors; ++i) {
    const double p_norm = std::sqrt(result[i]), g_norm = std::sqrt(of_gradients[i]);
    const double bottom = g_norm + args["weight_decay"] * p_norm + args["eps"];
    // "not 0", so that a NaN passes and is seen in the parameters.
    result[i] = args.lr * (p_norm != 0 && g_norm != 0 ? args["trust_coefficient"] * p_norm / bottom : 1.0);
  }
  return result;
}

template <class T>
void run_on_cpu(Cohort& cohort, at::TensorList grads, const KernelArgs& args) {
  const cpu::Pointers<T> pointers(cohort, grads);
  const cpu::Blocks blocks(cohort.params);
  const std::vector<double> lr = rates(blocks, pointers, cohort.params.size(), args);
  blocks.run([&](const cpu::Block& block) {
    const auto x = pointers[block];
    const loops::LARS<T> c{.lr = static_cast<T>(lr[block.tensor]),
                           .weight_decay = static_cast<T>(args["weight_decay"]),
                           .momentum = static_cast<T>(args["momentum"]),
                           .sign = static_cast<T>(args.flag("maximize") ? -1 : 1)};
    loops::best<T>().lars(c, block.size, x.p, x.g, x.state[0]);
  });
}

void run_foreach(Cohort& cohort, at::TensorList grads, const KernelArgs& args) {
  foreach
    ::Gate gate(cohort, args);
  const double weight_decay = args["weight_decay"];
  // A new list, to be scaled in place.
  std::vector<at::Tensor> step = at::_foreach_mul(grads, args.flag("maximize") ? -1.0 : 1.0);
  at::Tensor local;
  if (adapts(args)) {
    const at::Tensor p_norm = foreach::norms(cohort.params), g_norm = foreach::norms(step);
    const at::Tensor bottom = g_norm + p_norm * weight_decay + args["eps"];
    const at::Tensor usable = (p_norm != 0).logical_and(g_norm != 0);
    local = at::where(usable, p_norm * args["trust_coefficient"] / bottom, 1.0);
  }
  if (weight_decay != 0) at::_foreach_add_(step, cohort.params, weight_decay);
  if (local.defined())
    foreach
      ::scale_each(step, local);
  foreach
    ::times_lr(step, args);
  if (!cohort.state.empty()) {
    at::_foreach_mul_(cohort.state[0], args["momentum"]);
    at::_foreach_add_(cohort.state[0], step);
    step = cohort.state[0];
  }
  at::_foreach_sub_(cohort.params, step);
  gate.close();
}

}  // namespace

LARS::LARS(std::vector<at::Tensor> params, const LARSOptions& options)
    : LARS(std::vector<ParamGroup>{{.params = std::move(params)}}, options) {}

LARS::LARS(std::vector<ParamGroup> groups, const LARSOptions& options) : CohortOptimizer(method(options), groups) {}

void LARS::apply(Cohort& cohort, at::TensorList grads, const KernelArgs& args) {
  if (!cpu::serves(cohort)) return run_foreach(cohort, grads, args);
  if (cpu::refused(args)) return;
  cpu::dispatch(cohort, [&]<class T>(T) { run_on_cpu<T>(cohort, grads, args); });
}

}  // namespace saturate::optim
