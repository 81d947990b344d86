// SPDX-License-Identifier: Apache-2.0
#include "first_forward.hpp"

#include "saturate/error.hpp"
#include "saturate/log.hpp"

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_set>
#include <utility>

namespace saturate::detail {
namespace {

thread_local constinit int depth = 0;
std::atomic<bool> by_function = false;

namespace nodes = torch::autograd::generated;

template <class Node>
bool updates_statistics_as(const torch::autograd::Node& node) {
  const auto* norm = dynamic_cast<const Node*>(&node);
  return norm != nullptr && norm->training &&
         (norm->running_mean_.has_hooks() || norm->running_mean_.unpack().defined());
}

bool updates_statistics(const torch::autograd::Node& node) {
  return updates_statistics_as<nodes::NativeBatchNormBackward0>(node) ||
         updates_statistics_as<nodes::CudnnBatchNormBackward0>(node) ||
         updates_statistics_as<nodes::MiopenBatchNormBackward0>(node);
}

void say_once_that_hooks_are_missing() {
  static std::once_flag once;
  std::call_once(once, [] {
    log::warn(
        "recompute: another autograd engine is installed (Python's?), so blocks are recomputed by a function in place "
        "of saved-tensor hooks: gradients are equal to rounding, and second derivatives are refused");
  });
}

}  // namespace

InsideBlock::InsideBlock() { ++depth; }
InsideBlock::~InsideBlock() { --depth; }
bool inside_block() { return depth > 0; }

std::vector<at::Tensor> find_parameters(const std::vector<at::Tensor*>& outputs, uint64_t first_node,
                                        bool norms_known) {
  std::vector<at::Tensor> parameters;
  std::vector<torch::autograd::Node*> waiting;
  std::unordered_set<torch::autograd::Node*> seen;
  const auto visit = [&](torch::autograd::Node* node) {
    // A node that accumulates into a parameter has the highest number there is.
    if (node != nullptr && node->sequence_nr() >= first_node && seen.insert(node).second) waiting.push_back(node);
  };
  for (const at::Tensor* output : outputs) {
    if (!output->defined()) continue;
    if (output->is_leaf() && output->requires_grad()) parameters.push_back(*output);
    visit(output->grad_fn().get());
  }
  while (!waiting.empty()) {
    torch::autograd::Node& node = *waiting.back();
    waiting.pop_back();
    if (!norms_known && updates_statistics(node)) {
      throw StateError(
          "recompute: the callable runs BatchNorm (or InstanceNorm) in training mode, and the second forward would "
          "update its statistics once more; say which modules it runs: recompute(with_modules(callable, norm), ...)");
    }
    if (auto* sum = dynamic_cast<torch::autograd::AccumulateGrad*>(&node)) parameters.push_back(sum->variable);
    for (const auto& edge : node.next_edges()) visit(edge.function.get());
  }
  return parameters;
}

bool recomputes_by_hooks() { return !by_function && torch_seam::install_engine(); }
void recompute_by_function(bool always) { by_function = always; }

BlockParts BlockParts::of(const torch::nn::Module& module) {
  BlockParts parts;
  parts.add(module);
  return parts;
}

void BlockParts::add(const torch::nn::Module& module) {
  owners.push_back(module.weak_from_this().lock());
  modules.push_back(&module);
}

bool worth_recomputing(const BlockParts& parts, const std::vector<at::Tensor>& inputs) {
  if (!at::GradMode::is_enabled()) return false;
  const auto differentiable = [](const at::Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); };
  if (parts.modules.empty() || std::any_of(inputs.begin(), inputs.end(), differentiable)) return true;
  return std::any_of(parts.modules.begin(), parts.modules.end(), [&](const torch::nn::Module* module) {
    const auto parameters = module->parameters();
    return std::any_of(parameters.begin(), parameters.end(), differentiable);
  });
}

FirstForward::FirstForward(std::shared_ptr<Block> block, BlockParts parts, std::vector<at::Tensor> inputs) {
  if (!recomputes_by_hooks()) {
    if (!by_function) say_once_that_hooks_are_missing();
    way_ = std::make_unique<Function>(std::move(block), std::move(parts), std::move(inputs));
  } else {
    way_ = std::make_unique<Hooks>(std::move(block), std::move(parts), std::move(inputs));
  }
}
FirstForward::~FirstForward() = default;

std::span<const at::Tensor> FirstForward::inputs() const { return way_->inputs(); }
void FirstForward::finish(const std::vector<at::Tensor*>& outputs) { way_->finish(outputs); }

FirstForward::Hooks::Hooks(std::shared_ptr<Block> block, BlockParts parts, std::vector<at::Tensor> inputs)
    : inputs_(inputs),
      first_node_(at::sequence_number::peek()),
      parts_known_(!parts.modules.empty()),
      frame_(std::make_shared<Frame>(std::move(block), std::move(parts), std::move(inputs))),
      scope_(frame_.get()) {}

void FirstForward::Hooks::finish(const std::vector<at::Tensor*>& outputs) {
  frame_->forward_done();
  if (parts_known_) return;
  for (const at::Tensor& parameter : find_parameters(outputs, first_node_, /*norms_known=*/false)) {
    frame_->add_parameter(parameter);
  }
}

}  // namespace saturate::detail
