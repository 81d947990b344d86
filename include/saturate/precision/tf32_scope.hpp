// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>

namespace saturate {

/// float32 matrix products (cuBLAS) and convolutions and recurrent layers (cuDNN) on a GPU may run in TensorFloat-32
/// while the object lives; then every switch is as it was, after an exception too. The switches are the process's, not
/// the thread's: backward runs on threads of its own.
class Tf32Scope {
 public:
  /// @param enabled false: full float32 in a region inside.
  explicit Tf32Scope(bool enabled = true);
  ~Tf32Scope();
  Tf32Scope(const Tf32Scope&) = delete;
  Tf32Scope& operator=(const Tf32Scope&) = delete;

 private:
  std::array<int, 4> table_;   // LibTorch's table of float32 precisions
  std::optional<int> matmul_;  // the older switches, where the program has not left them behind
  std::optional<bool> convolution_;
};

}  // namespace saturate
