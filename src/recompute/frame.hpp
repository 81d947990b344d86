// SPDX-License-Identifier: Apache-2.0
// A block that was run once, and what backward needs to run it again: autograd's saved tensors are numbered in the
// order in which forward saves them, and backward gets them by number from a second forward.
#pragma once

#include "../torch_seam/saved_tensors.hpp"
#include "captured_state.hpp"
#include "frame_listener.hpp"
#include "saturate/recompute/detail/run_block.hpp"

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace saturate::detail {

/// An input of a block, from its first forward to backward.
class SavedInput {
 public:
  /// Goes through the hooks that are on, if any: within an outer block, that block makes it again.
  explicit SavedInput(const at::Tensor& tensor);
  /// The values, without a graph. @throws StateError changed in place.
  at::Tensor values(std::size_t number);
  /// A leaf for the second forward.
  at::Tensor leaf(std::size_t number);
  /// Lets go of what an outer block has made again.
  void forget() {
    if (is_packed_) kept_ = KeptTensor();
  }

 private:
  bool requires_grad_ = false;
  KeptTensor kept_;
  torch::autograd::SavedVariable packed_;  // where kept_ comes from, if so
  bool is_packed_ = false;
};

/// -1: there is none.
int64_t version_of(const at::Tensor& tensor);
/// @throws StateError one of the inputs of a block has another version by now.
void require_inputs_unchanged(const std::vector<at::Tensor>& inputs, const std::vector<int64_t>& versions);

/// This thread is inside a recomputed block while it lives.
class InsideBlock {
 public:
  InsideBlock();
  ~InsideBlock();
  InsideBlock(const InsideBlock&) = delete;
  InsideBlock& operator=(const InsideBlock&) = delete;
};

/// Shared by all hooks of the block; each is destroyed when its autograd node has run (or is gone), and tells.
class Frame final : public torch_seam::SavedTensorPacker, public std::enable_shared_from_this<Frame> {
 public:
  Frame(std::shared_ptr<Block> block, BlockParts parts, std::vector<at::Tensor> inputs);
  ~Frame() override;

  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() override;
  const std::vector<at::Tensor>& inputs() const { return inputs_; }
  /// @throws StateError the block cannot be run again.
  void forward_done();
  /// A parameter that the block uses, of a block whose modules are not known.
  void add_parameter(const at::Tensor& parameter) { tensors_.add_parameter(parameter); }
  /// Ends the first forward, also after an exception: an input that was changed in place has this block in its graph.
  void close();

 private:
  class SlotHooks;
  class Replay;
  class ReplayHooks;

  /// What became of one saved tensor.
  struct Slot {
    enum class Way { input, kept, dropped };
    Way way;
    bool needed = true;     // its node may still ask for it
    bool asked = false;     // it has, in this backward pass
    std::size_t input = 0;  // of way input
    KeptTensor tensor;      // of way kept; of way dropped: recomputed and not yet asked for
    // of way dropped
    c10::SmallVector<int64_t, 5> sizes;
    at::ScalarType dtype;
    c10::Device device;
  };

  std::size_t pack(const at::Tensor& tensor);
  bool outlives(const at::Tensor& tensor) const;
  at::Tensor unpack(std::size_t number);
  void release(std::size_t number);
  at::Tensor take(std::size_t number);
  void recompute();
  void note_asked(std::size_t number);
  void note_dropped(std::size_t number, const at::Tensor& tensor);
  void tell_forward_done();
  static bool missing(const Slot& slot) {
    return slot.way == Slot::Way::dropped && slot.needed && !slot.tensor.values().defined();
  }

  std::shared_ptr<Block> block_;
  BlockParts parts_;
  std::vector<at::Tensor> inputs_;        // during the first forward
  std::vector<int64_t> input_versions_;   // before it
  std::vector<SavedInput> saved_inputs_;  // one each, undefined ones too
  std::vector<std::size_t> first_of_;     // number of the first input that is the same tensor
  BlockTensors tensors_;
  CapturedState state_;
  std::shared_ptr<FrameListener> listener_;                      // mostly nullptr
  std::vector<std::pair<std::size_t, DroppedStorage>> dropped_;  // by slot, for the listener, in the first forward
  std::vector<Slot> slots_;
  std::size_t to_ask_ = 0;      // slots that are needed and not asked for
  std::recursive_mutex mutex_;  // backward runs on several threads; a forward may drop a graph that holds hooks of ours
};

}  // namespace saturate::detail
