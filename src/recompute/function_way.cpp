// SPDX-License-Identifier: Apache-2.0
#include "first_forward.hpp"
#include "saturate/error.hpp"

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

namespace saturate::detail {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What the second forward needs.
struct FirstForward::Function::Rerun {
  Rerun(std::shared_ptr<Block> forward, BlockParts its_parts, const std::vector<at::Tensor>& inputs)
      : block(std::move(forward)), parts(std::move(its_parts)), tensors(parts), state(tensors, inputs) {
    for (const at::Tensor& input : inputs) saved.emplace_back(input);
  }

  /// Gradients of the inputs that are defined, and then of the parameters.
  variable_list gradients(const variable_list& of_outputs);

  std::shared_ptr<Block> block;
  BlockParts parts;
  BlockTensors tensors;
  CapturedState state;
  std::vector<SavedInput> saved;
  std::vector<at::Tensor> parameters;
  std::vector<std::size_t> differentiable;  // outputs
};

namespace {

bool holds(const std::vector<at::Tensor>& list, const at::Tensor& tensor) {
  return std::any_of(list.begin(), list.end(), [&](const at::Tensor& one) { return one.is_same(tensor); });
}

}  // namespace

/// Stands for the block in the graph.
struct FirstForward::Function::Node : torch::autograd::Function<FirstForward::Function::Node> {
  static variable_list forward(AutogradContext* context, at::TensorList, std::shared_ptr<Rerun> rerun,
                               variable_list outputs) {
    variable_list constant;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const auto& list = rerun->differentiable;
      if (std::find(list.begin(), list.end(), i) == list.end()) constant.push_back(outputs[i]);
    }
    context->mark_non_differentiable(constant);
    context->saved_data["rerun"] = c10::IValue::make_capsule(c10::make_intrusive<Holder>(std::move(rerun)));
    return outputs;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    if (at::GradMode::is_enabled()) {
      throw StateError(
          "recompute: this block was recomputed by a function, because another autograd engine (Python's?) is "
          "installed, and cannot be differentiated twice; call it without recompute");
    }
    const auto holder = context->saved_data["rerun"].toCapsule();
    variable_list result = static_cast<Holder&>(*holder).rerun->gradients(gradients);
    result.resize(result.size() + 2);  // the rerun and the outputs
    return result;
  }

 private:
  struct Holder final : torch::CustomClassHolder {
    explicit Holder(std::shared_ptr<Rerun> what) : rerun(std::move(what)) {}
    std::shared_ptr<Rerun> rerun;
  };
};

variable_list FirstForward::Function::Rerun::gradients(const variable_list& of_outputs) {
  tensors.require_unchanged(parts);
  variable_list leaves, wanted;
  for (std::size_t i = 0; i < saved.size(); ++i) leaves.push_back(saved[i].leaf(i));
  for (SavedInput& input : saved) input.forget();
  const InsideBlock inside;
  const CapturedState::Again again(state);
  const BlockTensors::Again buffers(tensors);
  const variable_list outputs = block->run_again(leaves);
  variable_list roots, root_gradients;
  for (const std::size_t i : differentiable) {
    roots.push_back(outputs.at(i));
    root_gradients.push_back(of_outputs.at(i));
  }
  for (const auto* list : {&leaves, &parameters}) {
    for (const at::Tensor& tensor : *list) {
      if (tensor.defined() && tensor.requires_grad()) wanted.push_back(tensor);
    }
  }
  auto found = torch::autograd::grad(roots, wanted, root_gradients, /*retain_graph=*/false, /*create_graph=*/false,
                                     /*allow_unused=*/true);
  variable_list result;
  auto next = found.begin();
  for (const auto* list : {&leaves, &parameters}) {
    for (const at::Tensor& tensor : *list) {
      if (tensor.defined()) result.push_back(tensor.requires_grad() ? *next++ : at::Tensor());
    }
  }
  return result;
}

FirstForward::Function::Function(std::shared_ptr<Block> block, BlockParts parts, std::vector<at::Tensor> inputs)
    : inputs_(std::move(inputs)),
      first_node_(at::sequence_number::peek()),
      rerun_(std::make_shared<Rerun>(std::move(block), std::move(parts), inputs_)) {
  for (const at::Tensor& input : inputs_) {
    input_versions_.push_back(version_of(input));
    leaves_.push_back(input.defined() ? input.detach().set_requires_grad(input.requires_grad()) : at::Tensor());
  }
}

void FirstForward::Function::finish(const std::vector<at::Tensor*>& outputs) {
  require_inputs_unchanged(inputs_, input_versions_);
  rerun_->tensors.forward_done();
  rerun_->state.forward_done();
  const bool parts_known = !rerun_->parts.modules.empty();
  for (const at::Tensor& leaf : find_parameters(outputs, first_node_, parts_known)) {
    if (holds(leaves_, leaf)) continue;
    rerun_->parameters.push_back(leaf);
    if (!parts_known) rerun_->tensors.add_parameter(leaf);
  }
  variable_list values, arguments;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i]->defined() && outputs[i]->requires_grad()) rerun_->differentiable.push_back(i);
    values.push_back(outputs[i]->defined() ? outputs[i]->detach() : at::Tensor());
  }
  if (rerun_->differentiable.empty()) return;
  for (const auto* list : {&inputs_, &rerun_->parameters}) {
    for (const at::Tensor& tensor : *list) {
      if (tensor.defined()) arguments.push_back(tensor);
    }
  }
  const variable_list result = Node::apply(at::TensorList(arguments), rerun_, std::move(values));
  for (std::size_t i = 0; i < outputs.size(); ++i) *outputs[i] = result[i];
}

}  // namespace saturate::detail
