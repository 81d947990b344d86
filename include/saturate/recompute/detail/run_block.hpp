// SPDX-License-Identifier: Apache-2.0
// Runs a piece of forward so that what it saves for backward is not kept, but made again there. The machinery behind
// recompute() and the recompute policies.
#pragma once

#include "saturate/for_each_tensor.hpp"

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace saturate::detail {

/// The modules whose parameters and buffers a block uses; kept alive where a shared_ptr owns them.
struct BlockParts {
  static BlockParts of(const torch::nn::Module& module);
  void add(const torch::nn::Module& module);

  std::vector<std::shared_ptr<const void>> owners;
  std::vector<const torch::nn::Module*> modules;  // none: not known
};

/// What runs twice.
class Block {
 public:
  virtual ~Block() = default;
  /// Forward on these tensors in place of the inputs'. @return the tensors of what comes out.
  virtual std::vector<at::Tensor> run_again(std::span<const at::Tensor> tensors) = 0;
};

/// How an input is kept: a view of an array (sizes, a TensorList) as an array of its own.
template <class T>
struct KeptAs {
  using type = T;
  static const T& keep(const T& value) { return value; }
};
template <class T>
struct KeptAs<c10::ArrayRef<T>> {
  using type = std::vector<T>;
  static type keep(c10::ArrayRef<T> values) { return values.vec(); }
};
template <class T>
using kept_as = KeptAs<std::decay_t<const T&>>;

template <class Forward, class... Inputs>
class BlockOf final : public Block {
 public:
  template <class... Given>
  explicit BlockOf(Forward forward, const Given&... inputs)
      : forward_(std::move(forward)), inputs_(kept_as<Given>::keep(inputs)...) {}

  /// Takes the tensors out of the inputs, in their order.
  std::vector<at::Tensor> take_tensors() {
    std::vector<at::Tensor> tensors;
    visit_tensors(inputs_, [&](at::Tensor& tensor) { tensors.push_back(std::exchange(tensor, at::Tensor())); });
    return tensors;
  }

  auto run(std::span<const at::Tensor> tensors) {
    std::tuple<Inputs...> inputs = inputs_;
    std::size_t next = 0;
    visit_tensors(inputs, [&](at::Tensor& tensor) { tensor = tensors[next++]; });
    return std::apply(forward_, inputs);
  }
  std::vector<at::Tensor> run_again(std::span<const at::Tensor> tensors) override {
    auto output = run(tensors);
    std::vector<at::Tensor> outputs;
    visit_tensors(output, [&](at::Tensor& tensor) { outputs.push_back(tensor); });
    return outputs;
  }

 private:
  Forward forward_;
  std::tuple<Inputs...> inputs_;  // without their tensors
};

/// Whether grad mode is on and a gradient can come through.
bool worth_recomputing(const BlockParts& parts, const std::vector<at::Tensor>& inputs);

/// Spans the first forward of a block.
class FirstForward {
 public:
  FirstForward(std::shared_ptr<Block> block, BlockParts parts, std::vector<at::Tensor> inputs);
  ~FirstForward();
  FirstForward(const FirstForward&) = delete;
  FirstForward& operator=(const FirstForward&) = delete;

  /// What the block is to run on.
  std::span<const at::Tensor> inputs() const;
  /// @throws StateError the block cannot run a second time. May replace the outputs by others of the same values.
  void finish(const std::vector<at::Tensor*>& outputs);

 private:
  class Way;
  class Hooks;
  class Function;
  std::unique_ptr<Way> way_;
};

/// Frames alive in this process: blocks that backward may still run again.
int64_t frames_alive();
/// Whether this thread is inside a recomputed block, in its first forward or a later one.
bool inside_block();

template <class Forward, class... Inputs>
auto run_block(BlockParts parts, Forward forward, const Inputs&... inputs) {
  static_assert((std::copy_constructible<std::decay_t<const Inputs&>> && ...),
                "saturate: recompute keeps a block's inputs for the second forward: each must be copyable "
                "(docs/recompute.md)");
  auto block = std::make_shared<BlockOf<Forward, typename kept_as<Inputs>::type...>>(std::move(forward), inputs...);
  std::vector<at::Tensor> tensors = block->take_tensors();
  static_assert(!std::is_void_v<decltype(block->run(tensors))>,
                "saturate: a recomputed block returns what comes out of it (docs/recompute.md)");
  if (!worth_recomputing(parts, tensors)) return block->run(tensors);
  FirstForward pass(block, std::move(parts), std::move(tensors));
  auto output = block->run(pass.inputs());
  std::vector<at::Tensor*> outputs;
  visit_tensors(output, [&](at::Tensor& tensor) { outputs.push_back(&tensor); });
  pass.finish(outputs);
  return output;
}

}  // namespace saturate::detail
