// SPDX-License-Identifier: Apache-2.0
// The part of PrefetchLoader that does not know its source's type.
#pragma once

#include "saturate/data/loader_options.hpp"
#include "saturate/data/loader_state.hpp"
#include "saturate/data/record_stream.hpp"
#include "saturate/data/source.hpp"

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
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

/// The samples of one batch: indices[k] is wanted at position first + k.
struct Places {
  std::span<const int64_t> indices;
  uint64_t seed = 0;
  int64_t epoch = 0;
  int64_t first = 0;
  SampleAt at(std::size_t k) const { return {indices[k], seed, epoch, first + static_cast<int64_t>(k)}; }
};

/// What a reader wrote: rows 0 .. count - 1 of each field.
struct WrittenRows {
  OnBadSample on_bad_sample = OnBadSample::fail;
  bool with_places = false;
  int64_t count = 0;
  std::vector<SampleAt> places;  ///< of the rows, when asked for
  int64_t skipped = 0;
  std::string last_skipped;

  void add(const SampleAt& at) {
    ++count;
    if (with_places) places.push_back(at);
  }
  /// Inside a catch block: counts the sample when that is the policy, else throws a DataError that names it, says what
  /// the exception said, and nests it.
  void bad(const std::string& sample);
};

/// Records that a stream gave for one batch.
struct Pulled {
  struct Item {
    Record record;
    std::string where;
  };
  std::vector<Item> items;  ///< kept for their memory; the first `count` are the batch
  std::size_t count = 0;
};

class BatchReader {
 public:
  virtual ~BatchReader() = default;
  /// Writes the samples one behind the other to each field's `out[f]`. May stop early once `wanted` is false.
  virtual void read(const Places& places, std::byte* const* out, const Wanted& wanted, WrittenRows& rows) const = 0;

  /// For a stream: its records, and the samples of those that were taken from it.
  virtual std::unique_ptr<RecordStream> open(const StreamPart&) const { return nullptr; }
  virtual void read(const Pulled&, const Places&, std::byte* const*, const Wanted&, WrittenRows&) const {}
};

/// `given`, or the one that `shuffle` asks for; warns when both do.
std::shared_ptr<const Sampler> chosen_sampler(std::shared_ptr<const Sampler> given, bool shuffle);

class LoaderEngine {
 public:
  /// @param sampler the order of an epoch; without one the reader is a stream, and size is not looked at
  /// @throws ConfigError, DataError on what cannot work. Threads start with the first epoch.
  LoaderEngine(std::unique_ptr<const BatchReader> reader, std::vector<FieldLayout> layout, int64_t size,
               std::shared_ptr<const Sampler> sampler, const LoaderOptions& options);
  ~LoaderEngine();

  void set_epoch(int64_t epoch, int64_t first_batch);
  int64_t epoch() const;
  int64_t batches_per_epoch() const;
  LoaderState state() const;
  void load_state(const LoaderState& state);
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
