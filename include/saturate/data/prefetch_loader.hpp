// SPDX-License-Identifier: Apache-2.0
// Reads batches ahead of the loop that uses them:
//
//   st::data::PrefetchLoader loader(source, {.batch_size = 128, .shuffle = true, .workers = 2});
//   for (auto& batch : loader) step(batch.data(), batch.target());   // one epoch; the next loop is the next epoch
//
// Workers gather straight into batch slots that are used again and again: no tensor per sample, no collating copy. A
// slot is free when the last tensor that refers to it is gone. Whoever keeps batches makes the loader allocate more
// slots (stats() counts them, a warning says so once); it never waits for the loop to give one back.
//
// Batches come in order, whatever the number of workers: batch b of epoch e holds epoch_order(size, shuffle, seed, e)
// [b * batch_size, (b + 1) * batch_size). At most `prefetch` of them are read or being read ahead.
#pragma once

#include "saturate/data/batch.hpp"
#include "saturate/data/detail/loader_engine.hpp"
#include "saturate/data/loader_options.hpp"
#include "saturate/data/source.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace saturate::data {
namespace detail {

template <class S>
class ReaderOf final : public BatchReader {
 public:
  explicit ReaderOf(S source) : source_(std::move(source)), layout_(source_.layout()) {}

  void read(std::span<const int64_t> indices, std::byte* const* out, const Wanted& wanted) const override {
    if constexpr (GatheringSource<S>) {
      try {
        return source_.gather(indices, at_row(out, 0));
      } catch (...) {
        read_each(indices, out, wanted);  // again, one by one: so the message can name the sample
        throw;
      }
    } else {
      read_each(indices, out, wanted);
    }
  }

  const S& source() const { return source_; }

 private:
  void read_each(std::span<const int64_t> indices, std::byte* const* out, const Wanted& wanted) const {
    for (std::size_t k = 0; k < indices.size() && wanted; ++k) {
      try {
        source_.read(indices[k], at_row(out, static_cast<int64_t>(k)));
      } catch (...) {
        throw_for_sample(indices[k]);
      }
    }
  }

  std::array<std::byte*, S::fields> at_row(std::byte* const* out, int64_t row) const {
    std::array<std::byte*, S::fields> place;
    for (std::size_t f = 0; f < S::fields; ++f) place[f] = out[f] + row * layout_[f].bytes();
    return place;
  }

  S source_;
  std::array<FieldLayout, S::fields> layout_;
};

}  // namespace detail

/// An input range of Batch<S::fields>. One thread loops over it; loaders share nothing with one another.
template <class S>
class PrefetchLoader {
  static_assert(sizeof(detail::CheckSource<S>) > 0);

 public:
  using batch_type = Batch<detail::fields_of<S>()>;

  /// The source is moved in; sources here are cheap to copy, they share their tensors.
  /// @throws ConfigError on options that cannot work (batch_size < 1, workers < 0, prefetch < 1, a device that is not
  /// there), DataError when the source is empty.
  PrefetchLoader(S source, LoaderOptions options) : options_(options) {
    if constexpr (Source<S>) {
      auto reader = std::make_unique<detail::ReaderOf<S>>(std::move(source));
      source_ = &reader->source();
      const auto layout = source_->layout();
      engine_ = std::make_unique<detail::LoaderEngine>(
          std::move(reader), std::vector<FieldLayout>(layout.begin(), layout.end()), source_->size(), options);
    }  // else CheckSource has said what is missing
  }

  class Iterator {
   public:
    using iterator_concept = std::input_iterator_tag;
    using value_type = batch_type;
    using difference_type = std::ptrdiff_t;

    Iterator() = default;
    batch_type& operator*() const { return loader_->current_; }
    batch_type* operator->() const { return &loader_->current_; }
    Iterator& operator++() {
      if (!loader_->advance()) loader_ = nullptr;
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const Iterator& it, std::default_sentinel_t) { return it.loader_ == nullptr; }

   private:
    friend class PrefetchLoader;
    explicit Iterator(PrefetchLoader* loader) : loader_(loader) {}
    PrefetchLoader* loader_ = nullptr;
  };

  /// Starts an epoch and reads its first batch. An epoch that was left early is dropped: this one begins at batch 0.
  /// @throws DataError with the sample's number when reading it failed; here, or at the ++ that reaches its batch. The
  /// loader can then be started again.
  Iterator begin() {
    engine_->start();
    return advance() ? Iterator(this) : Iterator();
  }
  std::default_sentinel_t end() const { return {}; }

  /// The next begin() is epoch `epoch`, from batch `first_batch` on (to go on in the middle of one). Each begin()
  /// adds 1.
  /// @throws ConfigError when epoch < 0, or first_batch is not in [0, batches_per_epoch()].
  void set_epoch(int64_t epoch, int64_t first_batch = 0) { engine_->set_epoch(epoch, first_batch); }
  /// The epoch that the next begin() starts.
  int64_t epoch() const { return engine_->epoch(); }

  /// Batches an epoch; 0 when drop_last leaves none.
  int64_t batches_per_epoch() const { return engine_->batches_per_epoch(); }
  /// Samples of the source.
  int64_t size() const { return source_->size(); }
  const S& source() const { return *source_; }
  const LoaderOptions& options() const { return options_; }
  LoaderStats stats() const { return engine_->stats(); }

 private:
  // Lets go of the current batch first: its slot can then take the next one.
  bool advance() {
    current_ = batch_type{};
    return engine_->next(current_.fields);
  }

  LoaderOptions options_;
  const S* source_ = nullptr;
  batch_type current_;
  std::unique_ptr<detail::LoaderEngine> engine_;
};

}  // namespace saturate::data
