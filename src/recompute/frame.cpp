// SPDX-License-Identifier: Apache-2.0
#include "frame.hpp"

#include "saturate/error.hpp"

#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <atomic>
#include <utility>

namespace saturate::detail {
namespace {

std::atomic<int64_t> living_frames = 0;
thread_local constinit std::shared_ptr<FrameListener> next_listener;

// Thrown out of the second forward when it has made all that is needed. Not a std::exception, so that what a model
// catches is not this.
struct Enough {};
}  // namespace

int64_t frames_alive() { return living_frames; }

void listen_to_next_frame(std::shared_ptr<FrameListener> listener) { next_listener = std::move(listener); }
std::shared_ptr<FrameListener> take_next_listener() { return std::exchange(next_listener, nullptr); }

int64_t version_of(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_inference() ? static_cast<int64_t>(tensor._version()) : -1;
}

void require_inputs_unchanged(const std::vector<at::Tensor>& inputs, const std::vector<int64_t>& versions) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (version_of(inputs[i]) == versions[i]) continue;
    throw StateError(c10::str("recompute: the block changes tensor ", i, " of its inputs in place (",
                              describe(sizes_of(inputs[i]), inputs[i].scalar_type(), inputs[i].device()),
                              "), so it cannot run a second time; let its first operation make a new tensor"));
  }
}

// Inputs -------------------------------------------------------------------------------------------------------------

SavedInput::SavedInput(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  requires_grad_ = tensor.requires_grad();
  is_packed_ = torch_seam::current_packer() != nullptr;
  if (is_packed_) {
    packed_ = torch::autograd::SavedVariable(tensor, /*is_output=*/false);
  } else {
    kept_ = KeptTensor(tensor);
  }
}

at::Tensor SavedInput::values(std::size_t number) {
  if (is_packed_ && !kept_.values().defined()) kept_ = KeptTensor(packed_.unpack());
  if (kept_.values().defined() && kept_.changed()) {
    throw StateError(c10::str("recompute: tensor ", number,
                              " of the block's inputs was changed in place between forward "
                              "and backward (",
                              kept_.story(),
                              "): a second forward would compute something else; "
                              "change a copy, or use what gives a new tensor"));
  }
  return kept_.values();
}

at::Tensor SavedInput::leaf(std::size_t number) {
  const at::Tensor tensor = values(number);
  return tensor.defined() ? tensor.detach().set_requires_grad(requires_grad_) : tensor;
}

// Hooks of the first forward -----------------------------------------------------------------------------------------

class Frame::SlotHooks final : public torch::autograd::SavedVariableHooks {
 public:
  explicit SlotHooks(std::shared_ptr<Frame> frame) : frame_(std::move(frame)) {}
  ~SlotHooks() override {
    if (number_) frame_->release(*number_);
  }
  void call_pack_hook(const at::Tensor& tensor) override { number_ = frame_->pack(tensor); }
  at::Tensor call_unpack_hook() override { return frame_->unpack(*number_); }

 private:
  std::shared_ptr<Frame> frame_;
  std::optional<std::size_t> number_;
};

Frame::Frame(std::shared_ptr<Block> block, BlockParts parts, std::vector<at::Tensor> inputs)
    : block_(std::move(block)),
      parts_(std::move(parts)),
      inputs_(std::move(inputs)),
      tensors_(parts_),
      state_(tensors_, inputs_),
      listener_(take_next_listener()) {
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    input_versions_.push_back(version_of(inputs_[i]));
    const auto same = std::find_if(inputs_.begin(), inputs_.begin() + static_cast<std::ptrdiff_t>(i),
                                   [&](const at::Tensor& other) { return other.is_same(inputs_[i]); });
    first_of_.push_back(static_cast<std::size_t>(same - inputs_.begin()));
    saved_inputs_.emplace_back(first_of_[i] == i ? inputs_[i] : at::Tensor());
  }
  ++living_frames;
}

Frame::~Frame() { --living_frames; }

std::unique_ptr<torch::autograd::SavedVariableHooks> Frame::hooks() {
  return std::make_unique<SlotHooks>(shared_from_this());
}

std::size_t Frame::pack(const at::Tensor& tensor) {
  const std::lock_guard lock(mutex_);
  Slot slot{Slot::Way::dropped, true, false, 0, {}, {}, tensor.scalar_type(), tensor.device()};
  const auto input =
      std::find_if(inputs_.begin(), inputs_.end(), [&](const at::Tensor& other) { return other.is_same(tensor); });
  if (input != inputs_.end()) {
    slot.way = Slot::Way::input;
    slot.input = first_of_[static_cast<std::size_t>(input - inputs_.begin())];
  } else if (outlives(tensor.is_view() ? at::Tensor(tensor._base()) : tensor)) {
    slot.way = Slot::Way::kept;
    slot.tensor = KeptTensor(tensor);
  } else {
    slot.sizes.assign(sizes_of(tensor).begin(), sizes_of(tensor).end());
  }
  slots_.push_back(std::move(slot));
  ++to_ask_;
  if (listener_ != nullptr && slots_.back().way == Slot::Way::dropped) note_dropped(slots_.size() - 1, tensor);
  return slots_.size() - 1;
}

void Frame::note_dropped(std::size_t number, const at::Tensor& tensor) {
  if (tensor.has_storage()) {
    const c10::Storage& storage = tensor.storage();
    dropped_.emplace_back(number, DroppedStorage{storage.getWeakStorageImpl(), static_cast<int64_t>(storage.nbytes())});
  }
  listener_->saved();
}

void Frame::tell_forward_done() {
  std::vector<DroppedStorage> dropped;  // but for those whose node is gone already
  for (auto& [number, storage] : dropped_) {
    if (slots_[number].needed) dropped.push_back(std::move(storage));
  }
  dropped_ = {};
  int64_t bytes = 0, unsaved = 0;
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    if (first_of_[i] != i || !inputs_[i].defined() || !inputs_[i].has_storage()) continue;
    const auto size = static_cast<int64_t>(inputs_[i].storage().nbytes());
    bytes += size;
    const bool saved = std::any_of(slots_.begin(), slots_.end(), [&](const Slot& slot) {
      return slot.way == Slot::Way::input && slot.input == i && slot.needed;
    });
    if (!saved) unsaved += size;
  }
  listener_->forward_done(std::move(dropped), bytes, unsaved);
}

// Parameters and buffers are there anyway.
bool Frame::outlives(const at::Tensor& tensor) const {
  return (tensor.is_leaf() && tensor.requires_grad()) || tensors_.has_buffer(tensor);
}

void Frame::forward_done() {
  require_inputs_unchanged(inputs_, input_versions_);
  tensors_.forward_done();
  state_.forward_done();
  if (listener_ != nullptr) tell_forward_done();
}

void Frame::close() {
  const std::lock_guard lock(mutex_);
  inputs_.clear();
}

void Frame::release(std::size_t number) {
  at::Tensor dropped;  // freed outside the lock
  const std::lock_guard lock(mutex_);
  Slot& slot = slots_[number];
  slot.needed = false;
  if (!slot.asked) note_asked(number);
  dropped = slot.tensor.values();
  slot.tensor = KeptTensor();
}

// When all that is needed has been asked for, the pass is over for this block; in another one it begins anew.
void Frame::note_asked(std::size_t number) {
  if (std::exchange(slots_[number].asked, true) || --to_ask_ > 0) return;
  for (SavedInput& input : saved_inputs_) input.forget();
  for (Slot& slot : slots_) {
    slot.asked = !slot.needed;
    to_ask_ += slot.needed ? 1 : 0;
  }
}

at::Tensor Frame::unpack(std::size_t number) {
  const std::lock_guard lock(mutex_);
  at::Tensor values = take(number);
  note_asked(number);
  return values;
}

at::Tensor Frame::take(std::size_t number) {
  const auto changed = [&](const char* what) {
    return StateError(c10::str("recompute: ", what, " that the block saved for backward was changed in place (",
                               slots_[number].tensor.story(), "); change a copy"));
  };
  switch (slots_[number].way) {
    case Slot::Way::input: return saved_inputs_[slots_[number].input].values(slots_[number].input);
    case Slot::Way::kept:
      if (slots_[number].tensor.changed()) throw changed("a parameter or buffer");
      return slots_[number].tensor.values();
    case Slot::Way::dropped: break;
  }
  if (missing(slots_[number])) recompute();
  if (slots_[number].tensor.changed()) throw changed("a tensor");
  // Handed out once: who asks again (a graph that is kept for another pass) has it made again.
  return std::exchange(slots_[number].tensor, KeptTensor()).values();
}

// The second forward -------------------------------------------------------------------------------------------------

/// Keeps its tensor: a forward may differentiate something inside.
class Frame::ReplayHooks final : public torch::autograd::SavedVariableHooks {
 public:
  explicit ReplayHooks(Replay& replay) : replay_(replay) {}
  void call_pack_hook(const at::Tensor& tensor) override;
  at::Tensor call_unpack_hook() override { return kept_.values(); }

 private:
  Replay& replay_;  // used in the forward only
  KeptTensor kept_;
};

class Frame::Replay final : public torch_seam::SavedTensorPacker {
 public:
  explicit Replay(Frame& frame) : slots_(frame.slots_), listener_(frame.listener_.get()), made_(frame.slots_.size()) {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      if (missing(slots_[i])) last_wanted_ = i;
    }
  }

  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() override { return std::make_unique<ReplayHooks>(*this); }

  void pack(const KeptTensor& kept) {
    const std::size_t number = packed_++;
    if (number < slots_.size() && slots_[number].way == Slot::Way::dropped) {
      require_alike(number, kept.values());
      if (missing(slots_[number])) made_[number] = kept;
    }
    if (packed_ <= last_wanted_) return;
    if (listener_ != nullptr) listener_->replay_saved();
    throw Enough();
  }

  /// Hands over what was made. @throws StateError the second forward saved fewer tensors.
  void finish() {
    if (packed_ <= last_wanted_) {
      throw StateError(c10::str("recompute: the second forward saved ", packed_, " tensors for backward, the first ",
                                slots_.size(),
                                ": the block's forward is not deterministic. It may depend on nothing but "
                                "its inputs, parameters, buffers and the default random generators"));
    }
    for (std::size_t i = 0; i <= last_wanted_; ++i) {
      if (missing(slots_[i])) slots_[i].tensor = std::move(made_[i]);
    }
  }

 private:
  void require_alike(std::size_t number, const at::Tensor& second) const {
    const Slot& first = slots_[number];
    if (sizes_of(second) == at::IntArrayRef(first.sizes) && second.scalar_type() == first.dtype &&
        second.device() == first.device) {
      return;
    }
    throw StateError(c10::str(
        "recompute: saved tensor ", number, " of the block is ", describe(first.sizes, first.dtype, first.device),
        " in the first forward and ", describe(sizes_of(second), second.scalar_type(), second.device()),
        " in the second: the block's forward is not deterministic. It may depend on nothing but its "
        "inputs, parameters, buffers and the default random generators"));
  }

  std::vector<Slot>& slots_;
  FrameListener* listener_;
  std::vector<KeptTensor> made_;
  std::size_t last_wanted_ = 0;
  std::size_t packed_ = 0;
};

void Frame::ReplayHooks::call_pack_hook(const at::Tensor& tensor) {
  kept_ = KeptTensor(tensor);
  replay_.pack(kept_);
}

void Frame::recompute() {
  tensors_.require_unchanged(parts_);
  std::vector<at::Tensor> leaves;
  for (std::size_t i = 0; i < saved_inputs_.size(); ++i) {
    leaves.push_back(first_of_[i] == i ? saved_inputs_[i].leaf(i) : leaves[first_of_[i]]);
  }
  if (listener_ != nullptr) listener_->replay_begins();
  Replay replay(*this);
  {
    const InsideBlock inside;
    const CapturedState::Again state(state_);
    const BlockTensors::Again buffers(tensors_);
    const torch_seam::PackScope scope(&replay);
    try {
      block_->run_again(leaves);
    } catch (const Enough&) {  // NOLINT(bugprone-empty-catch): that was all
    }
  }
  replay.finish();
  leaves.clear();
  if (listener_ != nullptr) listener_->replay_done();
}

}  // namespace saturate::detail
