// SPDX-License-Identifier: Apache-2.0
// On the recompute axis: what forward saves for backward waits in host memory.
//
//   st::Trainer trainer(net, ..., st::Offload());
//
//   st::Offload offload({.min_bytes = 4 << 20});   // in a loop of your own
//   offload.attach(*net, device);                  // once, with the model on its device
//   {
//     const auto scope = offload.scope();
//     loss = criterion(net->forward(x), y);
//   }
//   loss.backward();
#pragma once

#include "saturate/policy.hpp"
#include "saturate/recompute/detail/saved_pass.hpp"
#include "saturate/recompute/saved_counts.hpp"

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

namespace saturate {

/// Where saved tensors wait.
enum class OffloadTo {
  pinned_host,  ///< of CUDA tensors: page-locked host memory, copied both ways on a stream of its own
  cpu_copy,     ///< of CPU tensors: a copy, which saves nothing. For tests of a program where there is no GPU
};

struct OffloadOptions {
  int64_t min_bytes = 1 << 20;  ///< tensors whose storage is smaller stay
  OffloadTo to = OffloadTo::pinned_host;
  /// Tensors come back block by block. A block is an outermost marked part (marks.hpp) below the root; one that saves
  /// more bytes than this is cut, and so is what lies outside of all marks.
  int64_t block_bytes = 256 << 20;

  /// @throws ConfigError min_bytes is negative, or block_bytes below 1.
  void validate() const;
};

/// Saved tensors are copied to the host while forward goes on, and each leaves the device when its copy is done, at the
/// latest when the block after the next begins. When backward first needs something of a block, the copies of that
/// block and of the one before it start. Values do not change: loss and gradients equal the plain run bit for bit.
/// Worth it where a block's arithmetic takes longer than its bytes take over the bus.
///
/// Parameters and buffers stay, as do tensors without a plain strided storage (sparse, nested, quantized). A saved
/// tensor that is changed in place before backward is a StateError there, as without the policy. Graphs may be kept for
/// another pass and differentiated twice. Copies of the policy share their model and counts.
class Offload {
 public:
  using axis = saturate::axis::recompute;

  /// @throws ConfigError see OffloadOptions::validate.
  explicit Offload(const OffloadOptions& options = {});

  /// The Trainer does this; in a loop of your own, do it once.
  /// @throws ConfigError `device` is not where OffloadTo takes tensors from: on a CPU there is nothing to win.
  void attach(const torch::nn::Module& model, c10::Device device);
  /// Spans one forward; backward may run after it has ended. One that moves nothing at all is warned about, once.
  /// @throws StateError before attach(), or another autograd engine (Python's) is installed.
  detail::SavedPass scope() const { return detail::SavedPass(store_); }

  SavedCounts counts() const;

 private:
  OffloadOptions options_;
  std::shared_ptr<detail::SavedStore> store_;  // shared: a graph points to it while the policy may be moved
};
static_assert(RecomputePolicy<Offload>);

}  // namespace saturate
