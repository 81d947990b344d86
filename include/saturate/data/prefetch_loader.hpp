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
// [b * batch_size, (b + 1) * batch_size), or with R ranks the rank's part of [b * B, (b + 1) * B), B = R * batch_size.
// At most `prefetch` of them are read or being read ahead.
#pragma once

#include "saturate/data/batch.hpp"
#include "saturate/data/detail/loader_engine.hpp"
#include "saturate/data/loader_options.hpp"
#include "saturate/data/loader_state.hpp"
#include "saturate/data/record_stream.hpp"
#include "saturate/data/sampler.hpp"
#include "saturate/data/source.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace saturate::data {
namespace detail {

template <class S>
std::array<std::byte*, S::fields> at_row(const std::array<FieldLayout, S::fields>& layout, std::byte* const* out,
                                         int64_t row) {
  std::array<std::byte*, S::fields> place;
  for (std::size_t f = 0; f < S::fields; ++f) place[f] = out[f] + row * layout[f].bytes();
  return place;
}

template <class S>
class ReaderOf final : public BatchReader {
 public:
  explicit ReaderOf(S source) : source_(std::move(source)), layout_(source_.layout()) {}

  void read(const Places& places, std::byte* const* out, const Wanted& wanted, WrittenRows& rows) const override {
    if constexpr (GatheringSource<S>) {
      try {
        source_.gather(places.indices, at_row<S>(layout_, out, 0));
      } catch (...) {
        read_each(places, out, wanted, rows);  // again, one by one: so the message can name the sample
        if (rows.skipped == 0 && wanted) throw;
        return;
      }
      rows.count = static_cast<int64_t>(places.indices.size());
      for (std::size_t k = 0; rows.with_places && k < places.indices.size(); ++k) rows.places.push_back(places.at(k));
    } else {
      read_each(places, out, wanted, rows);
    }
  }

  const S& source() const { return source_; }

 private:
  void read_each(const Places& places, std::byte* const* out, const Wanted& wanted, WrittenRows& rows) const {
    for (std::size_t k = 0; k < places.indices.size() && wanted; ++k) {
      const SampleAt at = places.at(k);
      try {
        source_.read(at, at_row<S>(layout_, out, rows.count));
        rows.add(at);
      } catch (...) {
        rows.bad("sample " + std::to_string(at.index));
      }
    }
  }

  S source_;
  std::array<FieldLayout, S::fields> layout_;
};

template <class S>
class StreamReaderOf final : public BatchReader {
 public:
  explicit StreamReaderOf(S source) : source_(std::move(source)), layout_(source_.layout()) {}

  std::unique_ptr<RecordStream> open(const StreamPart& part) const override { return source_.open(part); }
  void read(const Places&, std::byte* const*, const Wanted&, WrittenRows&) const override {}
  void read(const Pulled& pulled, const Places& places, std::byte* const* out, const Wanted& wanted,
            WrittenRows& rows) const override {
    for (std::size_t k = 0; k < pulled.count && wanted; ++k) {
      const auto& [record, where] = pulled.items[k];
      try {
        source_.read(record, where, places.at(k), at_row<S>(layout_, out, rows.count));
        rows.add(places.at(k));
      } catch (...) {
        rows.bad(where);
      }
    }
  }
  const S& source() const { return source_; }

 private:
  S source_;
  std::array<FieldLayout, S::fields> layout_;
};

/// options.sampler, else the source's own, else what `shuffle` says.
template <class S>
std::shared_ptr<const Sampler> sampler_for(const S& source, const LoaderOptions& options) {
  std::shared_ptr<const Sampler> chosen = options.sampler;
  if constexpr (requires {
                  { source.sampler() } -> std::convertible_to<std::shared_ptr<const Sampler>>;
                }) {
    if (!chosen) chosen = source.sampler();
  }
  return chosen_sampler(std::move(chosen), options.shuffle);
}

}  // namespace detail

/// An input range of Batch<S::fields>. One thread loops over it; loaders share nothing with one another. S is a Source,
/// or a StreamSource: that one promises less (source.hpp).
template <class S>
class PrefetchLoader {
  static_assert(sizeof(std::conditional_t<StreamSource<S>, LoaderOptions, detail::CheckSource<S>>) > 0);

 public:
  using batch_type = Batch<detail::fields_of<S>()>;

  /// The source is moved in; sources here are cheap to copy, they share their tensors.
  /// @throws ConfigError on options that cannot work (batch_size < 1, prefetch < 1, rank not in [0, ranks), a device
  /// that is not there), DataError when the source is empty.
  PrefetchLoader(S source, LoaderOptions options) : options_(options) {
    if constexpr (Source<S>) {
      auto reader = std::make_unique<detail::ReaderOf<S>>(std::move(source));
      source_ = &reader->source();
      const auto layout = source_->layout();
      auto sampler = detail::sampler_for(*source_, options);
      engine_ = std::make_unique<detail::LoaderEngine>(std::move(reader),
                                                       std::vector<FieldLayout>(layout.begin(), layout.end()),
                                                       source_->size(), std::move(sampler), options);
    } else if constexpr (StreamSource<S>) {
      auto reader = std::make_unique<detail::StreamReaderOf<S>>(std::move(source));
      source_ = &reader->source();
      const auto layout = source_->layout();
      engine_ = std::make_unique<detail::LoaderEngine>(
          std::move(reader), std::vector<FieldLayout>(layout.begin(), layout.end()), -1, nullptr, options);
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

  /// Where to go on after the last batch that was handed over: in another process, with other numbers of workers and
  /// ranks. Any batch sizes, too; the same ones give the same steps. Costs the same at any place of any source.
  LoaderState state() const { return engine_->state(); }
  /// The next begin() goes on from there, and reads nothing that lies before (a stream does).
  /// @throws ConfigError when that loader had another seed, sampler or number of samples; nothing has changed then.
  void load_state(const LoaderState& state) { engine_->load_state(state); }

  /// Batches an epoch on this rank; 0 when drop_last leaves none.
  int64_t batches_per_epoch() const requires Source<S> { return engine_->batches_per_epoch(); }
  /// Samples of the source.
  int64_t size() const requires Source<S> { return source_->size(); }
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
