// SPDX-License-Identifier: Apache-2.0
// A Source is anything that can write sample number i straight into a place in memory. The loader owns that place: a
// row of the next batch. So a sample is never a tensor of its own, and a batch is never put together from pieces.
//
//   struct Squares {
//     static constexpr std::size_t fields = 2;  // an input and a target
//     int64_t size() const { return 1000; }
//     std::array<st::data::FieldLayout, fields> layout() const { return {{{at::kFloat, {1}}, {at::kFloat, {1}}}}; }
//     void read(int64_t index, std::array<std::byte*, fields> out) const {
//       const float x = index, y = x * x;
//       std::memcpy(out[0], &x, sizeof x);
//       std::memcpy(out[1], &y, sizeof y);
//     }
//   };
#pragma once

#include "saturate/data/record_stream.hpp"
#include "saturate/data/sample_at.hpp"

#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace saturate::data {

/// What one field of one sample is: its dtype and its shape, without the batch dimension ({} is one number).
struct FieldLayout {
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
  /// ChannelsLast: the shape is [C, H, W], and the bytes of one sample lie as [H, W, C].
  at::MemoryFormat memory_format = at::MemoryFormat::Contiguous;

  int64_t numel() const {
    int64_t product = 1;
    for (const int64_t extent : shape) product *= extent;
    return product;
  }
  /// Bytes of one sample.
  int64_t bytes() const { return numel() * static_cast<int64_t>(c10::elementSize(dtype)); }
};

template <class S>
concept HasFields = requires {
  std::integral_constant<std::size_t, S::fields>{};
};
template <class S>
concept HasSize = requires(const S& source) {
  { source.size() } -> std::convertible_to<int64_t>;
};
template <class S>
concept HasLayout = HasFields<S> && requires(const S& source) {
  { source.layout() } -> std::convertible_to<std::array<FieldLayout, S::fields>>;
};
template <class S>
concept HasRead = HasFields<S> && requires(const S& source, SampleAt at, std::array<std::byte*, S::fields> out) {
  source.read(at, out);
};

/// `fields`, `size()`, `layout()` and `read(at, out)`; `at` is an int64_t, the sample's number, or a const SampleAt&
/// for sources with random augmentation. `read` is const, runs on several threads at once, and writes exactly
/// layout()[f].bytes() bytes to each out[f] (aligned for the dtype). What it throws reaches the loop over the loader,
/// with the number of the sample.
template <class S>
concept Source = HasFields<S> && HasSize<S> && HasLayout<S> && HasRead<S>;

/// A source that also reads many samples at once: sample indices[k] goes to out[f] + k * layout()[f].bytes().
template <class S>
concept GatheringSource = Source<S> &&
    requires(const S& source, std::span<const int64_t> indices, std::array<std::byte*, S::fields> out) {
  source.gather(indices, out);
};

/// Samples that come one after the other, without an index: `fields`, `layout()`, `open(part)` gives one pass over the
/// records, `read(record, where, at, out)` (const, several threads at once) writes one of them. A loader over it
/// promises less than over a Source: the order is what `open` makes of seed, epoch and the number of ranks; going on in
/// the middle reads again what lies before; nobody knows the number of batches beforehand, so ranks may end at
/// different ones.
template <class S>
concept StreamSource = HasLayout<S> &&
    requires(const S& source, const StreamPart& part, const Record& record, const std::string& where,
             const SampleAt& at, std::array<std::byte*, S::fields> out) {
  { source.open(part) } -> std::convertible_to<std::unique_ptr<RecordStream>>;
  source.read(record, where, at, out);
};

namespace detail {

/// S::fields, or a stand-in that keeps a type without it from causing more errors than the one sentence below.
template <class S>
consteval std::size_t fields_of() {
  if constexpr (HasFields<S>) {
    return S::fields;
  } else {
    return 2;
  }
}

// One sentence per missing member; completed by sizeof, so that it is the first line of the compiler's output.
template <class S>
struct CheckSource {
  static_assert(HasFields<S>,
                "saturate: a source needs `static constexpr std::size_t fields`, the number of tensors in a batch "
                "(docs/policies.md#sources)");
  static_assert(HasSize<S>,
                "saturate: a source needs `int64_t size() const`, the number of samples (docs/policies.md#sources)");
  static_assert(!HasFields<S> || HasLayout<S>,
                "saturate: a source needs `std::array<saturate::data::FieldLayout, fields> layout() const`, the dtype "
                "and the shape of one sample's fields (docs/policies.md#sources)");
  static_assert(!HasFields<S> || HasRead<S>,
                "saturate: a source needs `void read(int64_t index, std::array<std::byte*, fields> out) const`, which "
                "writes one sample (docs/policies.md#sources)");
};

}  // namespace detail
}  // namespace saturate::data
