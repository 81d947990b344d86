// SPDX-License-Identifier: Apache-2.0
// Spans one forward, whose saved tensors go into a store. The machinery that Offload and CompressSaved share.
#pragma once

#include <memory>

namespace saturate::detail {

class SavedStore;

class SavedPass {
 public:
  /// @throws StateError the store is attached to no model, or another autograd engine (Python's) is installed.
  explicit SavedPass(std::shared_ptr<SavedStore> store);
  ~SavedPass();
  SavedPass(SavedPass&&) noexcept;
  SavedPass& operator=(SavedPass&&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace saturate::detail
