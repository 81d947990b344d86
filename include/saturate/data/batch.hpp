// SPDX-License-Identifier: Apache-2.0
// What a batch is: any type for which `inputs(batch)` gives a tuple of model inputs and `target(batch)` the target.
// Defaults exist for std::pair, torch::data::Example and data::Batch; a type of your own gets two free functions beside
// it:
//
//   struct Sentence { at::Tensor ids, mask, next; };
//   inline auto inputs(const Sentence& s) { return std::tie(s.ids, s.mask); }
//   inline const at::Tensor& target(const Sentence& s) { return s.next; }
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <concepts>
#include <cstddef>
#include <tuple>
#include <utility>

namespace saturate {
namespace data {

/// One batch of `Fields` tensors, the samples along dimension 0. The last field is the target, the others are the
/// model's inputs.
template <std::size_t Fields>
struct Batch {
  static_assert(Fields >= 2, "saturate: a batch has at least one input and a target");
  std::array<at::Tensor, Fields> fields;

  const at::Tensor& data() const { return fields.front(); }
  const at::Tensor& target() const { return fields.back(); }
  /// Number of samples.
  int64_t size() const { return fields.front().size(0); }
};

template <std::size_t Fields>
auto inputs(const Batch<Fields>& batch) {
  return [&]<std::size_t... At>(std::index_sequence<At...>) { return std::tie(batch.fields[At]...); }
  (std::make_index_sequence<Fields - 1>{});
}
template <std::size_t Fields>
const at::Tensor& target(const Batch<Fields>& batch) {
  return batch.target();
}

}  // namespace data

namespace detail {

// A pair's halves, and Example's members, without including LibTorch's data headers.
template <class T>
concept PairLike = requires(const T& batch) {
  batch.first;
  batch.second;
};
template <class T>
concept ExampleLike = !PairLike<T> && requires(const T& batch) {
  { batch.data } -> std::convertible_to<at::Tensor>;
  { batch.target } -> std::convertible_to<at::Tensor>;
};

template <class T>
concept UserInputs = requires(const T& batch) {
  inputs(batch);
};
template <class T>
concept UserTarget = requires(const T& batch) {
  target(batch);
};

template <class T>
auto as_tuple(const T& value) {
  if constexpr (requires { std::tuple_size<T>::value; }) {
    return value;
  } else {
    return std::tie(value);
  }
}

template <class T>
auto batch_inputs(const T& batch) {
  if constexpr (UserInputs<T>) {
    return as_tuple(inputs(batch));
  } else if constexpr (PairLike<T>) {
    return std::apply([](const auto&... item) { return std::tie(item...); }, std::tie(batch.first));
  } else {
    static_assert(ExampleLike<T>,
                  "saturate: this batch type has no inputs(batch): add `auto inputs(const YourBatch&)` that returns a "
                  "tuple of tensors, beside the type (docs/architecture.md#batches)");
    return std::tie(batch.data);
  }
}

template <class T>
const auto& batch_target(const T& batch) {
  if constexpr (UserTarget<T>) {
    return target(batch);
  } else if constexpr (PairLike<T>) {
    return batch.second;
  } else {
    static_assert(ExampleLike<T>,
                  "saturate: this batch type has no target(batch): add `const at::Tensor& target(const YourBatch&)` "
                  "beside the type (docs/architecture.md#batches)");
    return batch.target;
  }
}

}  // namespace detail

/// A type the Trainer can take as one batch.
template <class T>
concept BatchLike = detail::UserInputs<T> || detail::PairLike<T> || detail::ExampleLike<T>;

}  // namespace saturate
