// SPDX-License-Identifier: Apache-2.0
// What one call of an operator computes and moves, from the shapes of its arguments, out of a trace or as it runs:
//
//   OpCall call{.name = "aten::mm", .arguments = {{.sizes = {64, 128}, .element_bytes = 4},
//                                                 {.sizes = {128, 32}, .element_bytes = 4}}};
//   op_cost(call).flops   // 2 * 64 * 128 * 32
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace saturate {

/// One argument, in the place that the operator's schema gives it.
struct OpArgument {
  std::vector<int64_t> sizes = {};   ///< of a tensor
  int64_t element_bytes = 0;         ///< of a tensor; 0: it is none
  std::vector<int64_t> values = {};  ///< of a number, a flag (0 or 1), or a list of them
  std::string text = {};             ///< what else was given: "same"
  bool tensor_list = false;          ///< of tensors; what they hold is not told
};

struct OpCall {
  std::string name;  ///< "aten::addmm"
  std::vector<OpArgument> arguments;
};

struct OpCost {
  static constexpr int64_t unknown = -1;
  /// Multiplications and additions of matrix products, convolutions and attention, 2 a multiply-add; 0 of all others.
  /// unknown: it does products, but the shapes or the values that the formula needs are missing.
  int64_t flops = 0;
  /// That have to be read and written at least: each tensor once. unknown: no rule for this operator, or a type or a
  /// shape is missing. 0: a view, or an allocation.
  int64_t bytes = unknown;
};

/// The formulas are those of torch.utils.flop_counter (mm_flop, addmm_flop, bmm_flop, baddbmm_flop, conv_flop_count,
/// conv_backward_flop, sdpa_flop_count, sdpa_backward_flop_count), and the results are equal, but for two things: the
/// gradient of a grouped convolution's weight is counted for the channels of its own group only (that one counts all),
/// and composite operators (linear, matmul, conv2d, scaled_dot_product_attention) have a number too. A causal or other
/// mask takes nothing away.
OpCost op_cost(const OpCall& call);

/// A call as a trace tells it: the texts of TraceDetails, shapes "[[64,128],[]]", types "[\"float\",\"Scalar\"]" and
/// values "[\"\",\"1\"]"; any may be empty.
OpCall parse_op_call(std::string_view name, std::string_view shapes, std::string_view types, std::string_view values);

/// Bytes of an element by the name of its type, of C++ ("float", "c10::BFloat16", "long int") or of c10 ("Float",
/// "BFloat16"); 0: it is not known.
int64_t type_bytes(std::string_view type);

}  // namespace saturate
