// SPDX-License-Identifier: Apache-2.0
// Samples that are already in memory: TensorSource source(images, labels);
#pragma once

#include "saturate/data/source.hpp"

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace saturate::data {
namespace detail {

/// The rows of one tensor, ready to be copied.
struct Rows {
  at::Tensor tensor;  ///< contiguous, on the CPU
  const std::byte* begin = nullptr;
  std::size_t bytes = 0;  ///< of one row
};

/// @throws DataError naming the tensor's position when it has no rows, is not a dense CPU tensor, or has not `size`
/// rows (size < 0: any number).
Rows rows_of(const at::Tensor& tensor, std::size_t position, int64_t size);
/// Copies row indices[k] to out + k * rows.bytes.
void gather_rows(const Rows& rows, std::span<const int64_t> indices, std::byte* out);
/// @throws DataError unless every index is in [0, size).
void check_indices(std::span<const int64_t> indices, int64_t size);

}  // namespace detail

/// N tensors whose rows belong together: sample i is row i of each; the last tensor is the target. Contiguous CPU
/// tensors are used in place, without a copy: what is written to them later is read by later batches. Others are copied
/// once.
template <std::size_t N>
class TensorSource {
 public:
  static constexpr std::size_t fields = N;

  /// @throws DataError when the tensors have different numbers of rows, none at all, or are not dense CPU tensors.
  template <class... Tensors>
  requires(sizeof...(Tensors) == N && (std::is_convertible_v<const Tensors&, at::Tensor> &&
                                       ...)) explicit TensorSource(const Tensors&... tensors) {
    std::size_t position = 0;
    ((rows_[position] = detail::rows_of(tensors, position, position == 0 ? -1 : size()), ++position), ...);
  }

  int64_t size() const { return rows_.front().tensor.size(0); }

  std::array<FieldLayout, N> layout() const {
    std::array<FieldLayout, N> result;
    for (std::size_t f = 0; f < N; ++f) {
      const at::Tensor& tensor = rows_[f].tensor;
      result[f] = FieldLayout{tensor.scalar_type(), tensor.sizes().slice(1).vec()};
    }
    return result;
  }

  void read(int64_t index, std::array<std::byte*, N> out) const { gather({&index, 1}, out); }

  void gather(std::span<const int64_t> indices, std::array<std::byte*, N> out) const {
    detail::check_indices(indices, size());
    for (std::size_t f = 0; f < N; ++f) detail::gather_rows(rows_[f], indices, out[f]);
  }

 private:
  std::array<detail::Rows, N> rows_;
};

template <class... Tensors>
requires(std::is_convertible_v<const Tensors&, at::Tensor>&&...) TensorSource(const Tensors&...)
->TensorSource<sizeof...(Tensors)>;

static_assert(GatheringSource<TensorSource<2>>);

}  // namespace saturate::data
