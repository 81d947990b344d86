// SPDX-License-Identifier: Apache-2.0
// Several sources as one, each with its share of the sequence:
//
//   st::data::MixtureSource mixture({.weights = {3, 1}}, books, code);  // of four samples, three are from books
//   st::data::PrefetchLoader loader(mixture, {.batch_size = 32, .seed = 7});
//
// Sample numbers run through the sources one after the other. Which of them an epoch visits is for the mixture's own
// sampler to say, mixture.sampler(); a loader uses it when it is given no other.
#pragma once

#include "saturate/data/sampler.hpp"
#include "saturate/data/source.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace saturate::data {

/// When an epoch of a mixture ends.
struct MixtureStop {
  enum class Rule { first_exhausted, all_exhausted, samples };
  Rule rule = Rule::first_exhausted;
  int64_t count = 0;

  /// Before the first sample that a source no longer has: no sample comes twice.
  static MixtureStop first_exhausted() { return {}; }
  /// After every source was gone through at least once; those that end earlier start again, in another order.
  static MixtureStop all_exhausted() { return {Rule::all_exhausted, 0}; }
  /// After n samples; sources that end start again, in another order.
  static MixtureStop samples(int64_t n) { return {Rule::samples, n}; }
};

struct MixtureOptions {
  std::vector<double> weights;  ///< one for each source, positive; their ratios count
  MixtureStop stop;
  bool shuffle = true;  ///< each source in another order each epoch and each pass; else ascending
};

/// Which source each position takes: the one that is furthest behind its share, weight * (p + 1) - samples taken so
/// far, the first of several. So every stretch of the sequence has nearly the exact proportions, and neither the choice
/// nor the length depends on the seed or the epoch. Within a source: its own permutation of f(seed, epoch, source,
/// pass).
class MixtureSampler final : public Sampler {
 public:
  /// @param sizes samples of each source
  /// @throws ConfigError when a size or a weight is not positive, a weight is not finite, their numbers differ, a
  /// weight is below 2^-50 of their sum, or an epoch would have no sample or more than 2^32.
  MixtureSampler(std::vector<int64_t> sizes, MixtureOptions options);

  int64_t length(int64_t size) const override;
  /// @throws ConfigError unless `size` is the sum of the sources' sizes.
  std::vector<int64_t> order(int64_t size, uint64_t seed, int64_t epoch) const override;
  std::string name() const override;

 private:
  void check_size(int64_t size) const;

  std::vector<int64_t> sizes_;
  std::vector<int64_t> shares_;  // the weights, as integers
  MixtureOptions options_;
  int64_t length_ = 0;  // of an epoch
};

namespace detail {
/// @throws ConfigError naming the source and the field when `layout` is not that of source 0.
void require_same_layout(std::span<const FieldLayout> first, std::span<const FieldLayout> layout, std::size_t source);
/// @throws DataError unless index is in [0, size).
void check_mixture_index(int64_t index, int64_t size);
}  // namespace detail

/// Sources with equal layouts, of any types. Their augmentation sees the mixture's position, and the sample's number in
/// its own source.
template <class... Sources>
class MixtureSource {
  static_assert(sizeof...(Sources) > 0, "saturate: a mixture needs a source");
  static_assert((Source<Sources> && ...), "saturate: a mixture is made of sources (docs/policies.md#sources)");
  using First = std::tuple_element_t<0, std::tuple<Sources...>>;
  static_assert(((Sources::fields == First::fields) && ...),
                "saturate: the sources of a mixture need the same number of fields");
  static constexpr std::size_t count = sizeof...(Sources);

 public:
  static constexpr std::size_t fields = First::fields;

  /// @throws ConfigError when the layouts differ (naming source and field) or as MixtureSampler does.
  explicit MixtureSource(MixtureOptions options, Sources... sources)
      : sources_(std::move(sources)...),
        sampler_(std::apply(
            [&](const auto&... each) {
              return std::make_shared<const MixtureSampler>(std::vector<int64_t>{each.size()...}, std::move(options));
            },
            sources_)) {
    const auto first = layout();
    int64_t total = 0;
    std::size_t position = 0;
    for_each([&](const auto& source) {
      const auto other = source.layout();
      detail::require_same_layout(first, other, position);
      starts_[position++] = total;
      total += source.size();
    });
    starts_[count] = total;
  }

  int64_t size() const { return starts_[count]; }
  std::array<FieldLayout, fields> layout() const { return std::get<0>(sources_).layout(); }

  void read(const SampleAt& at, std::array<std::byte*, fields> out) const {
    with_source(source_of(at.index), [&](const auto& source, int64_t start) {
      source.read(SampleAt(at.index - start, at.seed, at.epoch, at.position), out);
    });
  }

  /// One call of a source for each stretch of neighbours that are its.
  void gather(std::span<const int64_t> indices, std::array<std::byte*, fields> out) const
      requires(GatheringSource<Sources>&&...) {
    const auto layouts = layout();
    std::vector<int64_t> own;  // numbers in one source
    for (std::size_t k = 0; k < indices.size(); k += own.size()) {
      const std::size_t which = source_of(indices[k]);
      own.clear();
      for (std::size_t j = k; j < indices.size() && source_of(indices[j]) == which; ++j)
        own.push_back(indices[j] - starts_[which]);
      with_source(which, [&](const auto& source, int64_t) { source.gather(own, out); });
      for (std::size_t f = 0; f < fields; ++f) out[f] += static_cast<int64_t>(own.size()) * layouts[f].bytes();
    }
  }

  std::shared_ptr<const Sampler> sampler() const { return sampler_; }
  /// The source that sample `index` comes from, from 0.
  /// @throws DataError when there is no such sample.
  std::size_t source_of(int64_t index) const {
    detail::check_mixture_index(index, size());
    return static_cast<std::size_t>(std::upper_bound(starts_.begin(), starts_.end(), index) - starts_.begin() - 1);
  }

 private:
  template <class Visit>
  void for_each(Visit visit) const {
    std::apply([&](const auto&... each) { (visit(each), ...); }, sources_);
  }
  template <class Visit>
  void with_source(std::size_t which, Visit visit) const {
    std::size_t position = 0;
    for_each([&](const auto& source) {
      if (position++ == which) visit(source, starts_[which]);
    });
  }

  std::tuple<Sources...> sources_;
  std::array<int64_t, count + 1> starts_{};  // samples before each source, and all
  std::shared_ptr<const Sampler> sampler_;
};

}  // namespace saturate::data
