// SPDX-License-Identifier: Apache-2.0
// What one operator does in a step: floating point operations and bytes, and how long it takes. FlopCounter measures
// it; a roofline is drawn from it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace saturate {

enum class WorkPhase {
  forward,    ///< also the update, and whatever else is no backward
  backward,   ///< inside of autograd's nodes
  recompute,  ///< a forward that runs again inside of backward
};
std::string_view to_string(WorkPhase phase);

/// All calls of one operator on the same shapes, in one phase.
struct OpWork {
  std::string name;    ///< "aten::addmm"
  std::string shapes;  ///< of its tensors: "[32], [64, 128], [128, 32]"
  WorkPhase phase = WorkPhase::forward;
  /// Of its products: "float32", "tf32", "bfloat16", ...; names the roof. Empty for what does none.
  std::string precision;
  int64_t calls = 0;
  /// Multiplications and additions of matrix products, convolutions and attention: 2 a multiply-add. Others count none.
  int64_t flops = 0;
  int64_t bytes = 0;   ///< that have to be read and written at least: each tensor once
  double seconds = 0;  ///< in it, without operators inside that are listed themselves; 0: not measured
};

}  // namespace saturate
