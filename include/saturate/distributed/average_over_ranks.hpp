// SPDX-License-Identifier: Apache-2.0
// The mean of tensors over ranks, in few and large reductions. SyncEvery averages weights with it.
#pragma once

#include "saturate/distributed/process_group.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace saturate::distributed {

struct AverageOptions {
  /// 0-dim, on the group's device: what this rank's tensors count; all ranks' shares add up to 1. Undefined: the same
  /// for every rank.
  at::Tensor share;
  int64_t chunk_bytes = int64_t{25} << 20;  ///< of one all-reduce; a larger tensor has one of its own
};

/// Each tensor becomes the sum over ranks of share * tensor, in place, with the same bits on every rank. Tensors are
/// floating-point or complex, on the group's device, and the same in number, shape and dtype on every rank; how they
/// lie in memory does not matter. Those of 16 bits are added up in float32 and rounded once. Called by every rank.
void average_over_ranks(const std::vector<at::Tensor>& tensors, const ProcessGroup& group,
                        const AverageOptions& options = {});

}  // namespace saturate::distributed
