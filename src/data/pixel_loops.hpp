// SPDX-License-Identifier: Apache-2.0
// The inner loops over rows of pixels. Apart from the rest because they are compiled for vectors, one set for each
// instruction set, which LibTorch's precompiled header cannot be. All sets give the same bits.
#pragma once

#include <cstdint>

namespace saturate::data::detail {

struct Normalization {
  float mean[3], std[3];
};

/// What one row of the output is made of: `count` pixels of four values (RGBX) or of one (grey), bytes or floats in
/// 0..255. Results for each of the 3 or 1 channels.
template <class T>
struct RowLoops {
  /// float (value / 255 - mean) / std; channel c goes to out + c * plane. For bytes the bits of that formula.
  void (*planes)(const T* row, int64_t count, int64_t channels, const Normalization& by, float* out, int64_t plane);
  /// The same values, channels side by side.
  void (*interleaved)(const T* row, int64_t count, int64_t channels, const Normalization& by, float* out);
  /// uint8, rounded, channels side by side.
  void (*bytes)(const T* row, int64_t count, int64_t channels, uint8_t* out);
};

struct PixelLoops {
  RowLoops<uint8_t> of_bytes;
  RowLoops<float> of_floats;
  /// Mirrors a row. `values`: 4 or 1 bytes a pixel.
  void (*mirror)(const uint8_t* row, int64_t count, int64_t values, uint8_t* out);
  /// out[i] = sum over t of weights[t] * rows[t * stride + i]; at least one tap.
  void (*blend_rows)(const uint8_t* rows, int64_t stride, const float* weights, int64_t taps, int64_t count,
                     float* out);
  /// Pixel i of the result is the sum over t < taps of weights[i * taps + t] times pixel first[i] + t of `row`. It goes
  /// to place i of `out`, or with `mirrored` to place count - 1 - i. `values`: 4 or 1 floats a pixel.
  void (*blend_columns)(const float* row, const int32_t* first, const float* weights, int64_t taps, int64_t count,
                        int64_t values, bool mirrored, float* out);
};

/// The fastest set that this machine runs.
const PixelLoops& pixel_loops();
/// The set for the instructions that all machines of this kind have.
const PixelLoops& portable_pixel_loops();

}  // namespace saturate::data::detail
