// SPDX-License-Identifier: Apache-2.0
// Images and labels in idx files, plain or gzip: MNIST, Fashion-MNIST, EMNIST, KMNIST.
//
//   auto train = st::data::IdxSource::fashion_mnist(st::data::Split::train, {.mean = 0.2860, .std = 0.3530});
#pragma once

#include "saturate/data/source.hpp"

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace saturate::data {

enum class Split { train, test };

/// What an image becomes.
struct IdxOptions {
  bool raw = false;  ///< uint8 as in the file, in place of float32; mean and std are then left to normalize_u8
  double mean = 0;   ///< float32 values are (pixel / 255 - mean) / std
  double std = 1;    ///< positive
};

/// Reads an idx file, plain or gzip, into a CPU tensor of the file's shape: uint8, int8, int16, int32, float32 or
/// float64 as its header says (big-endian values are turned).
/// @throws DataError naming the file: missing, a folder, truncated, damaged, wrong magic number, trailing data, empty.
at::Tensor load_idx(const std::string& path);

/// Images [1, H, W] (float32, or uint8 when raw) and labels (int64, 0-dim). The pixels stay uint8 in memory, a quarter
/// of the space; one becomes a float on its way into the batch.
class IdxSource {
 public:
  static constexpr std::size_t fields = 2;

  /// @param images idx file of uint8 [N, H, W]  @param labels idx file of uint8 [N]
  /// @throws DataError naming the file (see load_idx), also when the counts disagree.
  /// @throws ConfigError when std is not positive and finite or mean not finite.
  IdxSource(const std::string& images, const std::string& labels, IdxOptions options = {});

  /// Fashion-MNIST (60,000 train and 10,000 test images of 28 x 28) from `folder`.
  /// @throws DataError that says how to get it when it is not there.
  static IdxSource fashion_mnist(Split split, IdxOptions options = {},
                                 const std::string& folder = "/usr/share/datasets/fashion-mnist");

  int64_t size() const { return images_.size(0); }
  std::array<FieldLayout, fields> layout() const;
  void read(int64_t index, std::array<std::byte*, fields> out) const { gather({&index, 1}, out); }
  void gather(std::span<const int64_t> indices, std::array<std::byte*, fields> out) const;

  /// uint8 [N, H, W], all of them. Shared, not copied.
  const at::Tensor& images() const { return images_; }
  /// int64 [N].
  const at::Tensor& labels() const { return labels_; }

 private:
  at::Tensor images_;
  at::Tensor labels_;
  bool raw_;
  std::array<float, 256> values_;  // of the 256 pixels
};

static_assert(GatheringSource<IdxSource>);

}  // namespace saturate::data
