// SPDX-License-Identifier: Apache-2.0
// Copies that only change how a tensor is laid out or what type its elements have, and those that are taken back.
//
//   const Conversions found = conversions(timeline);
//   std::cout << found.of(ConversionKind::layout).ns << " ns, taken back " << found.of(ConversionKind::layout).back <<
//   " times\n";
#pragma once

#include "saturate/trace/timeline.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace saturate {

enum class ConversionKind : uint8_t {
  layout,   ///< NCHW to NHWC or back: by a copy, or by a kernel of cuDNN's
  gather,   ///< other strides: a transposed or sliced tensor is made contiguous
  reorder,  ///< into or out of a blocked layout of oneDNN's
  type,     ///< of the elements
};
inline constexpr std::size_t conversion_kinds = 4;
std::string_view to_string(ConversionKind kind);

/// All conversions from one form into another, from one place.
struct Conversion {
  ConversionKind kind = ConversionKind::layout;
  std::string from, to;  ///< "NCHW", "NHWC", "float", "c10::BFloat16"; empty: not told
  std::string caller;    ///< the operator that asked for it, or else the range; empty: neither is there
  int64_t count = 0;
  int64_t bytes = 0;  ///< read and written; of those whose shapes and types the trace has
  int64_t ns = 0;     ///< on the device, of a copy that ran there; else on the thread
};

/// All of one kind.
struct ConversionSum {
  int64_t count = 0, bytes = 0, ns = 0;
  /// Conversions of a shape that, in the same step and the same pass (forward, backward), had been converted the other
  /// way: both were for nothing, or nearly. A cast and its gradient's, which autograd makes, are no such pair.
  int64_t back = 0;
};

struct Conversions {
  std::vector<Conversion> rows;  ///< the longest first
  std::array<ConversionSum, conversion_kinds> sums{};
  int64_t steps_ns = 0;  ///< of all steps together: what shares are of
  /// Without recorded shapes, types and strides (record_shapes), only kernels and oneDNN's operators are seen.
  bool shapes_known = false;
  const ConversionSum& of(ConversionKind kind) const { return sums[static_cast<std::size_t>(kind)]; }
};

/// In the steps. A conversion is an aten::copy_ (into which contiguous, clone, to and _to_copy turn), a kernel named
/// nchwToNhwc or nhwcToNchw, or an operator of oneDNN's that reorders. A kernel that such a copy launched is part of
/// it.
Conversions conversions(const Timeline& timeline);

}  // namespace saturate
