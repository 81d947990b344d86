// SPDX-License-Identifier: Apache-2.0
// Activation checkpointing: a block's activations are not kept for backward but computed again there.
//
//   x = st::recompute(block, x);                                       // in place of block->forward(x)
//   auto [a, b] = st::recompute([&](at::Tensor x, at::Tensor y) { ... return std::tuple(a, b); }, x, y);
//   x = st::recompute(st::with_modules([=](at::Tensor x) { return norm(conv(x)).relu(); }, conv, norm), x);
//
// Nothing else changes: loss, gradients, random streams and BatchNorm's statistics are those of a plain run, bit for
// bit. Memory falls from the activations of all blocks to their inputs and the activations of one; a step computes one
// more forward. docs/recompute.md has the limits.
#pragma once

#include "saturate/marks.hpp"
#include "saturate/recompute/detail/run_block.hpp"

#include <concepts>
#include <type_traits>
#include <utility>

namespace saturate {

/// A callable together with the modules that it runs.
template <class F>
struct WithModules {
  F forward;
  detail::BlockParts parts;

  template <class... Inputs>
  auto operator()(Inputs&... inputs) {
    return forward(inputs...);
  }
};

/// Tells recompute() which modules `forward` runs: their BatchNorm statistics are then updated once, as in a plain run,
/// and a parameter that changes before backward is noticed. @param modules holders, shared_ptrs or modules.
template <class F, class... Modules>
WithModules<std::decay_t<F>> with_modules(F&& forward, const Modules&... modules) {
  WithModules<std::decay_t<F>> result{std::forward<F>(forward), {}};
  (result.parts.add(marks::detail::module_of(modules)), ...);
  return result;
}

namespace detail {
template <class M>
concept HoldsModule = requires(M& module) {
  { marks::detail::module_of(module) } -> std::convertible_to<const torch::nn::Module&>;
};

template <class F>
inline constexpr bool is_with_modules = false;
template <class F>
inline constexpr bool is_with_modules<WithModules<F>> = true;
}  // namespace detail

/// Runs `block` on the inputs and returns what it returns; what autograd saves in it is dropped and made again by a
/// second forward when backward first asks for it, as far as it is needed.
///
/// @param block a module (holder, shared_ptr, reference), run as a marked part (marks.hpp); or a callable, kept by
/// value. What it returns, and each input: a tensor, a tuple, vector, optional or struct of tensors (for_each_tensor),
/// or anything else that is copyable and owns what it holds.
/// @param inputs kept until backward; tensors are shared, not copied.
/// @throws StateError the block changes an input in place, or runs BatchNorm in training mode without saying which
/// module it belongs to (use with_modules). From backward: an input or parameter was changed in place since forward, or
/// the second forward saved other tensors than the first. An exception of the second forward itself comes out of
/// backward as it is. Random streams, autocast, buffers and grad mode are as they were then.
///
/// Blocks nest. The graph can be kept for another backward pass (it recomputes again) and differentiated twice. Without
/// anything to differentiate the block is just called. Generators of the block's own are not restored. Where Python's
/// autograd engine is loaded, a function-style way takes over: gradients to rounding (rtol 1e-6), and second
/// derivatives are refused.
template <class B, class... Inputs>
auto recompute(B&& block, const Inputs&... inputs) {
  using Plain = std::decay_t<B>;
  if constexpr (detail::is_with_modules<Plain>) {
    detail::BlockParts parts = block.parts;
    return detail::run_block(std::move(parts), Plain(std::forward<B>(block)), inputs...);
  } else if constexpr (detail::HoldsModule<B>) {
    auto* module = &marks::detail::module_of(block);
    return detail::run_block(
        detail::BlockParts::of(*module), [module](auto&... input) { return call(*module, input...); }, inputs...);
  } else {
    return detail::run_block(detail::BlockParts(), Plain(std::forward<B>(block)), inputs...);
  }
}

}  // namespace saturate
