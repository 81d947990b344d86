// SPDX-License-Identifier: Apache-2.0
// The part of PrefetchLoader that does not know its source's type.
#pragma once

#include "saturate/data/loader_options.hpp"
#include "saturate/data/source.hpp"

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace saturate::data::detail {

/// Whether somebody still wants the epoch that a batch is read for; asked between samples, so that leaving an epoch
/// does not wait for a slow one to be read to its end.
class Wanted {
 public:
  Wanted(const std::atomic<uint64_t>& current, uint64_t mine) : current_(current), mine_(mine) {}
  explicit operator bool() const { return current_.load(std::memory_order_relaxed) == mine_; }

 private:
  const std::atomic<uint64_t>& current_;
  uint64_t mine_;
};

class BatchReader {
 public:
  virtual ~BatchReader() = default;
  /// Writes the samples one behind the other to each field's `out[f]`. May stop early once `wanted` is false.
  virtual void read(std::span<const int64_t> indices, std::byte* const* out, const Wanted& wanted) const = 0;
};

/// Inside a catch block: throws a DataError that names the sample and says what the exception said, which it nests.
[[noreturn]] void throw_for_sample(int64_t index);

class LoaderEngine {
 public:
  /// @throws ConfigError, DataError on what cannot work. Threads start with the first epoch.
  LoaderEngine(std::unique_ptr<const BatchReader> reader, std::vector<FieldLayout> layout, int64_t size,
               const LoaderOptions& options);
  ~LoaderEngine();

  void set_epoch(int64_t epoch, int64_t first_batch);
  int64_t epoch() const;
  int64_t batches_per_epoch() const;
  /// Leaves the epoch that is running, if any, and starts the next.
  void start();
  /// The next batch's fields, in order. @return false at the epoch's end. @throws what reading it threw.
  bool next(std::span<at::Tensor> fields);
  LoaderStats stats() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace saturate::data::detail
