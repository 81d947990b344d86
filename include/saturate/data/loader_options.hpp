// SPDX-License-Identifier: Apache-2.0
// How a PrefetchLoader reads, and what it measured.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace saturate::data {

struct LoaderOptions {
  int64_t batch_size = 1;   ///< samples a batch; the last one of an epoch may be shorter
  bool shuffle = false;     ///< another order each epoch: epoch_order(size, true, seed, epoch)
  uint64_t seed = 0;        ///< of the order
  bool drop_last = false;   ///< leave out a last batch that is shorter
  int64_t workers = 1;      ///< threads that read; 0: the calling thread reads when it asks for a batch
  int64_t prefetch = 4;     ///< batches that may be read or being read ahead of the loop; not less than 1
  bool pin_memory = false;  ///< batches in page-locked memory, for your own copies to a GPU (a warning without CUDA)
  c10::Device device = c10::kCPU;  ///< with CUDA: batches arrive there, through pinned memory and a stream of their own
};

/// Totals since the loader was made.
struct LoaderStats {
  int64_t batches = 0;  ///< handed over
  /// Batch-sized blocks of host memory that were allocated; the others were used again. Pinned batches do not count:
  /// LibTorch's cache of pinned memory has them.
  int64_t slot_allocations = 0;
  double wait_seconds = 0;  ///< the loop waited for a batch (without workers: all reading)
  double read_seconds = 0;  ///< reading, summed over workers
};

}  // namespace saturate::data
