// SPDX-License-Identifier: Apache-2.0
// Losses give a sum and a count, never a mean: only so does a window of unequal micro-batches give the gradient of the
// whole batch (law 1). A lambda works too:
//   [](const at::Tensor& output, const at::Tensor& target) { return (output - target).abs().sum(); }
// sums over the batch, and the count is then the batch size. Return SumCount{sum, count} for any other count.
#pragma once

#include "saturate/trainer/count.hpp"

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <optional>
#include <type_traits>

namespace saturate {

/// Softmax cross entropy, summed over the targets that are not ignored.
/// output [N, C] or [N, C, d1, ...] floating; target int64 class indices [N] or [N, d1, ...], or probabilities shaped
/// as output.
struct CrossEntropy {
  /// Targets of this value carry no loss and are not counted. With nullopt every target must be a class: the count is
  /// then known on the host, and a step needs no guard against windows with nothing to learn from.
  std::optional<int64_t> ignore_index = -100;
  double label_smoothing = 0;

  at::Tensor operator()(const at::Tensor& output, const at::Tensor& target) const;
  Count count(const at::Tensor& target) const;
  /// 0-dim int64: targets whose largest logit is theirs. evaluate() reports it as "accuracy".
  at::Tensor correct(const at::Tensor& output, const at::Tensor& target) const;
  void validate() const;
};

/// Squared error, summed over elements; the count is the number of elements. output and target of one shape.
struct MSE {
  at::Tensor operator()(const at::Tensor& output, const at::Tensor& target) const;
  Count count(const at::Tensor& target) const { return target.numel(); }
};

/// Binary cross entropy of sigmoid(output) in the stable form, summed over elements; the count is their number.
/// output floating, target of the same shape with values in [0, 1].
struct BCEWithLogits {
  at::Tensor operator()(const at::Tensor& output, const at::Tensor& target) const;
  Count count(const at::Tensor& target) const { return target.numel(); }
};

namespace detail {

template <class Loss, class Target>
concept CountsTargets = requires(const Loss& loss, const Target& target) {
  { loss.count(target) } -> std::convertible_to<Count>;
};

template <class Result>
inline constexpr bool is_sum_count = std::is_same_v<std::remove_cvref_t<Result>, SumCount>;

/// Throws ConfigError unless `loss` is a 0-dim tensor with a graph behind it.
void check_loss(const at::Tensor& loss, bool needs_graph);

}  // namespace detail
}  // namespace saturate
