// SPDX-License-Identifier: Apache-2.0
#include "saturate/optim/sgd.hpp"

#include "cpu_kernel.hpp"
#include "foreach.hpp"
#include "loops.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/where.h>
#include <c10/util/StringUtil.h>

namespace saturate::optim {
namespace {

using Range = Method::Range;

std::vector<std::string> state_names(const Options& group) {
  if (group.at("momentum") == 0) return {};
  return {"momentum_buffer"};
}

std::string check(const Options& group) {
  const double momentum = group.at("momentum"), dampening = group.at("dampening");
  if (group.at("nesterov") == 0 || (momentum != 0 && dampening == 0)) return {};
  return c10::str("nesterov needs momentum above 0 (", momentum, ") and no dampening (", dampening, ")");
}

Method method(const SGDOptions& options) {
  return {.type = "SGD",
          .options = {{"lr", options.lr, Range::not_negative},
                      {"momentum", options.momentum, Range::not_negative},
                      {"dampening", options.dampening, Range::not_negative},
                      {"weight_decay", options.weight_decay, Range::not_negative},
                      {"nesterov", options.nesterov ? 1.0 : 0.0, Range::flag},
                      {"maximize", options.maximize ? 1.0 : 0.0, Range::flag}},
          .state_names = state_names,
          .momentum = "momentum",
          .check = check};
}

// The kernel is never told "first step": with a step that may be refused on the device, only the device knows. A buffer
// of zeros gives the same first update, (1 - dampening) * gradient, unless there is dampening: then LibTorch starts the
// buffer with the whole gradient, and this puts dampening / momentum * gradient there in advance.
void prime_buffers(Cohort& cohort, at::TensorList grads, const KernelArgs& args) {
  if (cohort.step.is_cpu() && *cohort.step.const_data_ptr<float>() != 1) return;
  at::Tensor first = cohort.step == 1;  // already counted, taken back if the step is refused
  if (args.found_inf) first = first.logical_and(*args.found_inf == 0);
  const double sign = args.flag("maximize") ? -1.0 : 1.0;
  for (std::size_t i = 0; i < grads.size(); ++i) {
    at::Tensor& buffer = cohort.state[0][i];
    const at::Tensor whole = grads[i] * sign + cohort.params[i] * args["weight_decay"];
    buffer.copy_(at::where(first, whole * (args["dampening"] / args["momentum"]), buffer));
  }
}

void run_on_cpu(Cohort& cohort, at::TensorList grads, const KernelArgs& args) {
  if (cpu::refused(args)) return;
  cpu::dispatch(cohort, [&]<class T>(T) {
    const loops::SGD<T> c{.lr = static_cast<T>(args.lr),
                          .momentum = static_cast<T>(args["momentum"]),
                          .one_minus_dampening = static_cast<T>(1 - args["dampening"]),
                          .weight_decay = static_cast<T>(args["weight_decay"]),
                          .sign = static_cast<T>(args.flag("maximize") ? -1 : 1),
                          .nesterov = args.flag("nesterov")};
    const cpu::Pointers<T> pointers(cohort, grads);
    cpu::Blocks(cohort.params).run([&](const cpu::Block& block) {
      const auto x = pointers[block];
      loops::best<T>().sgd(c, block.size, x.p, x.g, x.state[0]);
    });
  });
}

void run_foreach(Cohort& cohort, at::TensorList grads, const KernelArgs& args) {
  std::vector<at::Tensor> step = foreach::descent(cohort, grads, args, args["weight_decay"]);
  if (!cohort.state.empty()) {
    const auto& buffer = cohort.state[0];
    at::_foreach_mul_(buffer, args["momentum"]);
    at::_foreach_add_(buffer, step, 1 - args["dampening"]);
    step = args.flag("nesterov") ? at::_foreach_add(step, buffer, args["momentum"]) : buffer;
  }
  foreach
    ::subtract(cohort.params, step, args);
}

void run_fused(Cohort& cohort, at::TensorList grads, const KernelArgs& args) {
  const at::TensorList buffers = cohort.state.empty() ? at::TensorList() : at::TensorList(cohort.state[0]);
  const auto run = [&](const auto& lr) {
    at::_fused_sgd_(cohort.params, grads, buffers, args["weight_decay"], args["momentum"], lr, args["dampening"],
                    args.flag("nesterov"), args.flag("maximize"), /*is_first_step=*/false, std::nullopt,
                    args.found_inf);
  };
  if (args.lr_tensor.defined()) {
    run(args.lr_tensor);
  } else {
    run(args.lr);
  }
}

}  // namespace

SGD::SGD(std::vector<at::Tensor> params, const SGDOptions& options)
    : SGD(std::vector<ParamGroup>{{.params = std::move(params)}}, options) {}

SGD::SGD(std::vector<ParamGroup> groups, const SGDOptions& options) : CohortOptimizer(method(options), groups) {}

void SGD::apply(Cohort& cohort, at::TensorList grads, const KernelArgs& args) {
  // In half precision on the CPU, LibTorch 2.11's fused kernel leaves out the parameters of every whole vector and
  // writes what it finds beyond them into the momentum (pytorch#191763).
  const bool fused_is_wrong = cohort.params[0].is_cpu() && !cpu::serves(cohort);
  foreach
    ::Gate gate(cohort, fused_is_wrong ? args : KernelArgs{});
  if (!cohort.state.empty() && args["dampening"] != 0) prime_buffers(cohort, grads, args);
  if (cpu::serves(cohort)) {
    run_on_cpu(cohort, grads, args);
  } else if (fused_is_wrong) {
    run_foreach(cohort, grads, args);
  } else {
    run_fused(cohort, grads, args);
  }
  gate.close();
}

}  // namespace saturate::optim
