// SPDX-License-Identifier: Apache-2.0
// On the recompute axis: what forward saves for backward is kept in half the bytes. Lossy, so nobody gets it unasked.
//
//   st::Trainer trainer(net, ..., st::CompressSaved{at::kBFloat16});
//
//   st::CompressSaved compress;          // in a loop of your own
//   compress.attach(*net);               // once
//   {
//     const auto scope = compress.scope();
//     output = net->forward(x);
//   }
//   criterion(output, y).backward();     // the loss outside: what it saves stays exact
#pragma once

#include "saturate/policy.hpp"
#include "saturate/recompute/detail/saved_pass.hpp"
#include "saturate/recompute/saved_counts.hpp"

#include <c10/core/Device.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>

namespace saturate {

struct CompressOptions {
  at::ScalarType dtype = at::kBFloat16;  ///< or at::kHalf: 8 times finer, but what is above 65504 becomes infinite
  int64_t min_bytes = 1024;              ///< tensors whose storage is smaller stay exact

  /// @throws ConfigError another dtype, or a negative min_bytes.
  void validate() const;
};

/// float32 activations that are saved for backward are rounded to bfloat16 and widened again when backward asks.
/// Forward, and so the loss, is exact; gradients are computed from rounded activations: each is off by up to 2^-9
/// (float16: 2^-12) of itself. docs/recompute.md has what that does to gradients, and which operations it can ruin:
/// those that subtract saved values from each other (a squared error, the variance of values far from 0).
///
/// Exact stay: parameters and buffers, what has no gradient (inputs, targets, masks), other dtypes, and what is small.
/// A saved tensor that is changed in place before backward is a StateError there. Graphs may be kept for another pass;
/// second derivatives are computed from the same rounded values. Copies of the policy share their model and counts.
class CompressSaved {
 public:
  using axis = saturate::axis::recompute;

  /// @throws ConfigError see CompressOptions::validate.
  explicit CompressSaved(const CompressOptions& options = {});
  explicit CompressSaved(at::ScalarType dtype) : CompressSaved(CompressOptions{.dtype = dtype}) {}

  /// The Trainer does this; in a loop of your own, do it once.
  void attach(const torch::nn::Module& model, c10::Device = c10::Device(c10::DeviceType::CPU));
  /// Spans one forward; backward may run after it has ended. One that rounds nothing at all is warned about, once.
  /// @throws StateError before attach(), or another autograd engine (Python's) is installed.
  detail::SavedPass scope() const { return detail::SavedPass(store_); }

  SavedCounts counts() const;

 private:
  std::shared_ptr<detail::SavedStore> store_;  // shared: a graph points to it while the policy may be moved
};
static_assert(RecomputePolicy<CompressSaved>);

}  // namespace saturate
