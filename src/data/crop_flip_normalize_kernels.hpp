// SPDX-License-Identifier: Apache-2.0
// The seam between CropFlipNormalize and its kernels: plain numbers, so that nvcc never sees LibTorch's headers.
#pragma once

#include <cstdint>

namespace saturate::data::detail {

/// Where a sample's crop begins, and whether it is mirrored.
struct CropPlace {
  uint16_t x = 0, y = 0, flip = 0;
};

constexpr int64_t most_channels = 4;

struct CropStrides {
  int64_t sample = 0, channel = 0, row = 0, column = 0;  ///< in elements
};

/// What is the same for all samples.
struct CropJob {
  int32_t channels = 0, height = 0, width = 0;  ///< of the output
  CropStrides in, out;
  float mean[most_channels] = {}, std[most_channels] = {};
};

void crop_flip_normalize_cpu(const uint8_t* pixels, float* values, const CropJob& job, const CropPlace* places,
                             int64_t count) noexcept;

bool has_crop_flip_normalize_cuda() noexcept;

/// Enqueues it on `stream`, a cudaStream_t of the current device. `places` is on the host, and not needed any more
/// after the call. @return nullptr, or CUDA's words on what failed.
const char* crop_flip_normalize_cuda(const uint8_t* pixels, float* values, const CropJob& job, const CropPlace* places,
                                     int64_t count, void* stream) noexcept;

}  // namespace saturate::data::detail
