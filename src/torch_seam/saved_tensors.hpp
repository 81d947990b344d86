// SPDX-License-Identifier: Apache-2.0
// The one place that decides how autograd keeps the tensors that forward saves for backward. LibTorch has hooks for
// that, but takes the default ones from its engine: so a subclass of the engine gives them, thread by thread.
#pragma once

#include <c10/core/TensorImpl.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>

namespace saturate::torch_seam {

/// Makes the hooks for each tensor that is saved.
class SavedTensorPacker {
 public:
  virtual ~SavedTensorPacker() = default;
  /// One object a tensor; destroyed when its autograd node lets go of the tensor.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() = 0;
};

/// Makes the engine that gives the hooks LibTorch's own. Works once and for all, at the first call; to be called before
/// a PackScope, and never from within a backward pass.
/// @return false where another engine has taken the place, as Python's does when it is loaded: no hooks there.
bool install_engine();

/// What packs on this thread; nullptr: nothing, autograd keeps what it saves.
SavedTensorPacker* current_packer();

/// `packer` packs every tensor that is saved on this thread while the object lives; scopes nest, the inner one packs.
class PackScope {
 public:
  explicit PackScope(SavedTensorPacker* packer);
  ~PackScope();
  PackScope(const PackScope&) = delete;
  PackScope& operator=(const PackScope&) = delete;

 private:
  SavedTensorPacker* outer_;
};

/// Whether two tensors with these count their changes in place together, as a tensor and its views do.
bool same_counter(const c10::VariableVersion& a, const c10::VariableVersion& b);

}  // namespace saturate::torch_seam
