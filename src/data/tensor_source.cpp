// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/tensor_source.hpp"

#include "saturate/error.hpp"

#include <cstring>
#include <string>

namespace saturate::data::detail {
namespace {

constexpr std::size_t cache_line = 64;

// The order is random, so the processor cannot guess the next row: ask for its first lines while this one is copied.
// Its own prefetcher follows from there.
inline void fetch_ahead(const std::byte* row, std::size_t bytes) {
  const std::size_t ahead = bytes < 8 * cache_line ? bytes : 8 * cache_line;
  for (std::size_t at = 0; at < ahead; at += cache_line) __builtin_prefetch(row + at, 0, 0);
}

// A constant size lets the compiler turn memcpy into one move.
template <std::size_t Bytes>
void gather_small(const std::byte* from, std::span<const int64_t> indices, std::byte* out) {
  for (std::size_t k = 0; k < indices.size(); ++k) {
    std::memcpy(out + k * Bytes, from + static_cast<std::size_t>(indices[k]) * Bytes, Bytes);
  }
}

[[noreturn]] void refuse(std::size_t position, const std::string& why) {
  throw DataError("TensorSource: tensor " + std::to_string(position) + " " + why);
}

}  // namespace

Rows rows_of(const at::Tensor& tensor, std::size_t position, int64_t size) {
  if (!tensor.defined()) refuse(position, "is undefined");
  if (!tensor.device().is_cpu() || tensor.layout() != at::kStrided || tensor.is_quantized()) {
    refuse(position, "is " + tensor.toString() + " on " + tensor.device().str() +
                         "; samples are read from dense CPU tensors: use tensor.cpu().to_dense()");
  }
  if (tensor.dim() == 0) refuse(position, "has no dimension; samples lie along dimension 0");
  if (tensor.size(0) == 0) refuse(position, "has no rows: there is not one sample");
  if (size >= 0 && tensor.size(0) != size) {
    refuse(position, "has " + std::to_string(tensor.size(0)) + " rows, tensor 0 has " + std::to_string(size) +
                         "; sample i is row i of each");
  }
  Rows rows;
  rows.tensor = tensor.detach().resolve_conj().resolve_neg().contiguous();
  rows.begin = static_cast<const std::byte*>(rows.tensor.const_data_ptr());
  rows.bytes = static_cast<std::size_t>(rows.tensor.numel() / rows.tensor.size(0) * rows.tensor.element_size());
  return rows;
}

void gather_rows(const Rows& rows, std::span<const int64_t> indices, std::byte* out) {
  if (rows.bytes == 8) return gather_small<8>(rows.begin, indices, out);
  if (rows.bytes == 4) return gather_small<4>(rows.begin, indices, out);
  if (rows.bytes == 0) return;
  for (std::size_t k = 0; k < indices.size(); ++k) {
    if (k + 1 < indices.size())
      fetch_ahead(rows.begin + static_cast<std::size_t>(indices[k + 1]) * rows.bytes, rows.bytes);
    std::memcpy(out + k * rows.bytes, rows.begin + static_cast<std::size_t>(indices[k]) * rows.bytes, rows.bytes);
  }
}

void check_indices(std::span<const int64_t> indices, int64_t size) {
  for (const int64_t index : indices) {
    if (index < 0 || index >= size) {
      throw DataError("sample " + std::to_string(index) + " does not exist; there are " + std::to_string(size));
    }
  }
}

}  // namespace saturate::data::detail
