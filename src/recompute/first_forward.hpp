// SPDX-License-Identifier: Apache-2.0
// The two ways to recompute: by saved-tensor hooks, and, where those cannot be had, by an autograd function.
#pragma once

#include "captured_state.hpp"
#include "frame.hpp"
#include "saturate/recompute/detail/run_block.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace saturate::detail {

class FirstForward::Way {
 public:
  virtual ~Way() = default;
  virtual const std::vector<at::Tensor>& inputs() const = 0;
  virtual void finish(const std::vector<at::Tensor*>& outputs) = 0;
};

class FirstForward::Hooks final : public Way {
 public:
  Hooks(std::shared_ptr<Block> block, BlockParts parts, std::vector<at::Tensor> inputs);
  ~Hooks() override { frame_->close(); }
  const std::vector<at::Tensor>& inputs() const override { return inputs_; }
  void finish(const std::vector<at::Tensor*>& outputs) override;

 private:
  std::vector<at::Tensor> inputs_;
  uint64_t first_node_;  // number of the first autograd node that the block makes
  bool parts_known_;
  std::shared_ptr<Frame> frame_;
  InsideBlock inside_;
  torch_seam::PackScope scope_;
};

/// Runs the first forward on leaves of its own, finds the parameters in its graph, drops the graph, and lets an
/// autograd function stand for it that has the inputs and the parameters as its inputs.
class FirstForward::Function final : public Way {
 public:
  Function(std::shared_ptr<Block> block, BlockParts parts, std::vector<at::Tensor> inputs);
  const std::vector<at::Tensor>& inputs() const override { return leaves_; }
  void finish(const std::vector<at::Tensor*>& outputs) override;

  struct Rerun;
  struct Node;

 private:
  std::vector<at::Tensor> inputs_, leaves_;
  std::vector<int64_t> input_versions_;
  uint64_t first_node_;
  std::shared_ptr<Rerun> rerun_;
  InsideBlock inside_;
};

/// The parameters that a block's autograd nodes lead to; those are the nodes since number `first_node`.
/// @param norms_known false: @throws StateError one of the nodes updates running statistics.
std::vector<at::Tensor> find_parameters(const std::vector<at::Tensor*>& outputs, uint64_t first_node, bool norms_known);

/// Whether blocks are recomputed by saved-tensor hooks. Not to be asked from within a backward pass.
bool recomputes_by_hooks();
/// For tests: whether blocks go the function's way from now on.
void recompute_by_function(bool always);

}  // namespace saturate::detail
