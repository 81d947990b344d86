// SPDX-License-Identifier: Apache-2.0
// How a PrefetchLoader reads, and what it measured.
#pragma once

#include "saturate/data/sample_at.hpp"
#include "saturate/data/sampler.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace saturate::data {

/// LoaderOptions::workers: begins with one thread, adds one while the loop has to wait, takes one away while all that
/// may be read ahead always is; at most one a core, or a batch read ahead.
inline constexpr int64_t auto_workers = -1;

/// What becomes of the last global batch (batch_size samples on each of `ranks` ranks) when there are not enough
/// samples for it. Whole global batches are not concerned.
enum class Uneven {
  pad,   ///< shorter, and equal on all ranks: up to ranks - 1 samples of the epoch's beginning come again
  drop,  ///< shorter, and equal on all ranks: up to ranks - 1 samples are left out
  allow  ///< each sample once; ranks differ by up to one sample, and by one batch where a rank would have none
};

/// What a sample that cannot be read means.
enum class OnBadSample {
  fail,           ///< its error reaches the loop at its batch
  skip_and_count  ///< the batch is shorter by it; LoaderStats counts it, the log names some; no sample left is an error
};

/// Runs on every batch where it was read: on the worker's thread (of one core), and with a CUDA device on the copy's
/// stream, after the copy. May replace the tensors. `at[k]` is where row k belongs: random choices come from
/// SampleRandom(at[k]).
using BatchTransform = std::function<void(std::span<at::Tensor> fields, std::span<const SampleAt> at)>;

struct LoaderOptions {
  int64_t batch_size = 1;   ///< samples a batch, on each rank; the last one of an epoch may be shorter
  bool shuffle = false;     ///< another order each epoch: epoch_order(size, true, seed, epoch)
  uint64_t seed = 0;        ///< of the order and of augmentation
  bool drop_last = false;   ///< leave out a last batch that is shorter
  int64_t workers = 1;      ///< threads that read; 0: the calling thread, when it asks; or auto_workers
  int64_t prefetch = 4;     ///< batches that may be read or being read ahead of the loop; not less than 1
  bool pin_memory = false;  ///< batches in page-locked memory, for your own copies to a GPU (a warning without CUDA)
  c10::Device device = c10::kCPU;  ///< with CUDA: batches arrive there, through pinned memory and a stream of their own
  std::shared_ptr<const Sampler> sampler = nullptr;  ///< in place of `shuffle`; the source may bring its own
  int64_t rank = 0;                                  ///< of `ranks` processes that share the epoch's order
  int64_t ranks = 1;
  Uneven uneven = Uneven::pad;
  OnBadSample on_bad_sample = OnBadSample::fail;
  BatchTransform transform = nullptr;
};

/// Totals since the loader was made.
struct LoaderStats {
  int64_t batches = 0;          ///< handed over
  int64_t samples = 0;          ///< in them
  int64_t skipped_samples = 0;  ///< left out by OnBadSample::skip_and_count
  std::string last_skipped;     ///< what was wrong with the last one of them
  /// Batch-sized blocks of host memory that were allocated; the others were used again. Pinned batches do not count:
  /// LibTorch's cache of pinned memory has them.
  int64_t slot_allocations = 0;
  int64_t workers = 0;        ///< threads that read at present
  double wait_seconds = 0;    ///< the loop waited for a batch (without workers: all reading)
  double worker_seconds = 0;  ///< making batches, summed over workers
  double read_seconds = 0;    ///< the part of it that the source spent in Stage::read
  double decode_seconds = 0;  ///< ... and in Stage::decode
  double copy_seconds = 0;    ///< copies to the device and the transform there, as the device took them
  int64_t bytes = 0;          ///< from files, as they lie there
  double occupancy = 0;       ///< of the batches that may be read ahead, the share that was ready when the loop asked
};

}  // namespace saturate::data
