// SPDX-License-Identifier: Apache-2.0
// The rest of an image's way, where the pixels are: uint8 goes to the device, a quarter of the traffic, and one kernel
// crops, flips and normalizes there.
//
//   st::data::ImageSource source(folder, {.height = 256, .width = 256, .format = ImageFormat::uint8_channels_last});
//   st::data::CropFlipNormalize finish({.height = 224, .width = 224, .flip = 0.5, .mean = ..., .std = ...});
//   st::data::PrefetchLoader loader(source, {.batch_size = 256, .device = at::kCUDA, .transform = finish});
#pragma once

#include "saturate/data/image_options.hpp"
#include "saturate/data/sample_at.hpp"

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace saturate::data {

struct CropFlipNormalizeOptions {
  int64_t height = 224;  ///< of the output; at most that of the input
  int64_t width = 224;
  Crop crop = Crop::random;   ///< random or center
  double flip = 0;            ///< probability of a mirrored image
  std::vector<double> mean;   ///< of values in 0..1: one for each channel, or one for all; empty: 0
  std::vector<double> std;    ///< positive; empty: 1
  bool channels_last = true;  ///< memory format of the output
};

/// uint8 [N, C, H, W] to float32 [N, C, height, width]: (x / 255 - mean) / std. CPU and CUDA give the same bits.
/// Offsets and flips are drawn from SampleRandom(at) exactly as ImageDecoder draws them for Crop::random: moving them
/// from the decoder to the device changes no value. So flip, and crop at random, in one of the two only.
class CropFlipNormalize {
 public:
  /// @throws ConfigError when a size, the crop, flip, mean or std cannot work.
  explicit CropFlipNormalize(CropFlipNormalizeOptions options);

  /// Replaces fields[0], a uint8 tensor (contiguous or channels_last, C in 1..4) on the CPU or on a CUDA device. There
  /// it is enqueued on the current stream, the offsets among the kernel's arguments: the host does not wait. On the CPU
  /// it is a loop on this thread. Fits LoaderOptions::transform.
  /// @param at of each of the N samples.
  /// @throws DataError when fields[0] is not such a tensor, is smaller than the crop, or `at` has not N entries;
  /// ConfigError when mean or std has not as many values as there are channels, or saturate was built without nvcc and
  /// the tensor is on a CUDA device.
  void operator()(std::span<at::Tensor> fields, std::span<const SampleAt> at) const;

  /// The same, of one tensor.
  at::Tensor apply(const at::Tensor& images, std::span<const SampleAt> at) const;

  const CropFlipNormalizeOptions& options() const { return options_; }

 private:
  CropFlipNormalizeOptions options_;
};

}  // namespace saturate::data
