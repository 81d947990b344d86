// SPDX-License-Identifier: Apache-2.0
// Scratch tensors that cost no allocation, for what a step needs for a moment and does not keep:
//
//   st::Workspace workspace;                                     // once
//   const st::Workspace::Scope scope(workspace);                 // in the step
//   at::Tensor scores = workspace.take({n, n}, x.options());     // until the scope ends; values are undefined
//   at::mm_out(scores, q, k.t());
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace saturate {

/// Hands out pieces of blocks that it keeps, one after the other, and takes them back in reverse order, at the end of a
/// Scope. A first round allocates; the next one joins what it needed into one block a device and stream; from then on a
/// round that needs no more allocates nothing.
///
/// A tensor that somebody still holds when its scope ends, or a view of it, or autograd that has saved it for backward,
/// is no error: it keeps its memory, which then is the Workspace's no longer. But that is an allocation, in every step
/// where it happens, and so it is warned about once.
///
/// On a GPU a piece belongs to the stream that was current at take(): work on it from another stream must be waited for
/// before its scope ends.
///
/// Not thread-safe: give each thread its own.
class Workspace {
 public:
  Workspace();
  ~Workspace();
  Workspace(Workspace&&) noexcept;
  Workspace& operator=(Workspace&&) noexcept;

  /// A contiguous tensor with undefined values, aligned to 256 bytes, without a gradient; outside of all scopes it is
  /// good until reset(). Options as for at::empty: dtype float32 and the CPU by default.
  /// @throws ConfigError a negative size; requires_grad, pinned memory or a layout other than strided.
  /// @throws StateError another thread has pieces out.
  at::Tensor take(at::IntArrayRef sizes, const at::TensorOptions& options = {});

  /// Pieces taken while it lives go back at its end. Scopes nest.
  class Scope {
   public:
    explicit Scope(Workspace& workspace);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Workspace& workspace_;
    std::size_t taken_before_;
  };

  /// Takes everything back. @throws StateError inside a Scope.
  void reset();
  /// reset(), and gives the memory back. @throws StateError inside a Scope.
  void clear();
  /// Bytes of the blocks that are kept now.
  int64_t bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace saturate
