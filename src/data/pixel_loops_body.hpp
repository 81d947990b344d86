// SPDX-License-Identifier: Apache-2.0
// The bodies of pixel_loops.hpp, in a namespace without a name: included by one file for each instruction set, and
// nothing of one may be linked into another.
#pragma once

#include "pixel_loops.hpp"

#include <cstring>

namespace saturate::data::detail {
namespace {

// v / 255 to the last bit for all bytes v, without a division: the first product is exact, and the second so small
// that only the sum rounds.
inline float over_255(float v) { return v * 0x1.01p-8f + v * 0x1.010102p-24f; }

inline float normalized(float v, float mean, float std) { return (over_255(v) - mean) / std; }

inline uint8_t to_byte(float v) {
  const float low = v > 0 ? v : 0.0f, both = low < 255 ? low : 255.0f;
  return static_cast<uint8_t>(static_cast<int32_t>(both + 0.5f));
}

// Channel c of pixel i of RGBX. Bytes are taken out of whole words.
inline float channel_of(const uint8_t* row, int64_t i, int64_t c) {
  uint32_t word;
  std::memcpy(&word, row + 4 * i, 4);
  const auto shift = static_cast<uint32_t>(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? 8 * c : 24 - 8 * c);
  return static_cast<float>(static_cast<int32_t>(word >> shift & 0xff));
}
inline float channel_of(const float* row, int64_t i, int64_t c) { return row[4 * i + c]; }

template <class T>
void plane_of_four(const T* __restrict row, int64_t count, int64_t c, float mean, float std, float* __restrict out) {
#ifdef __clang__
#pragma clang loop interleave_count(1)  // rows are short: four vectors at once would leave much to the scalar rest
#endif
  for (int64_t i = 0; i < count; ++i) out[i] = normalized(channel_of(row, i, c), mean, std);
}

template <class T>
void plane_of_one(const T* __restrict row, int64_t count, float mean, float std, float* __restrict out) {
  for (int64_t i = 0; i < count; ++i) out[i] = normalized(static_cast<float>(row[i]), mean, std);
}

template <class T>
void planes(const T* row, int64_t count, int64_t channels, const Normalization& by, float* out, int64_t plane) {
  if (channels == 1) return plane_of_one(row, count, by.mean[0], by.std[0], out);
  for (int64_t c = 0; c < 3; ++c) plane_of_four(row, count, c, by.mean[c], by.std[c], out + c * plane);
}

constexpr int64_t piece = 256;  // pixels whose planes stay in the first cache

void interleave(const float* __restrict from, int64_t count, float* __restrict out) {
  for (int64_t i = 0; i < count; ++i) {
    out[3 * i] = from[i];
    out[3 * i + 1] = from[piece + i];
    out[3 * i + 2] = from[2 * piece + i];
  }
}

template <class T>
void interleaved(const T* row, int64_t count, int64_t channels, const Normalization& by, float* out) {
  if (channels == 1) return plane_of_one(row, count, by.mean[0], by.std[0], out);
  float three[3 * piece];
  for (int64_t i = 0; i < count; i += piece) {
    const int64_t size = count - i < piece ? count - i : piece;
    planes(row + 4 * i, size, 3, by, three, piece);
    interleave(three, size, out + 3 * i);
  }
}

inline uint8_t byte_of(uint8_t v) { return v; }
inline uint8_t byte_of(float v) { return to_byte(v); }

template <class T>
void bytes(const T* __restrict row, int64_t count, int64_t channels, uint8_t* __restrict out) {
  if (channels == 1) {
    for (int64_t i = 0; i < count; ++i) out[i] = byte_of(row[i]);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t c = 0; c < 3; ++c) out[3 * i + c] = byte_of(row[4 * i + c]);
  }
}

void mirror(const uint8_t* __restrict row, int64_t count, int64_t values, uint8_t* __restrict out) {
  if (values == 1) {
    for (int64_t i = 0; i < count; ++i) out[i] = row[count - 1 - i];
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    uint32_t pixel;
    std::memcpy(&pixel, row + 4 * (count - 1 - i), 4);
    std::memcpy(out + 4 * i, &pixel, 4);
  }
}

// So many taps in one go over the rows; `add` to what is there.
template <int taps, bool add>
void blend(const uint8_t* __restrict rows, int64_t stride, const float* __restrict weights, int64_t count,
           float* __restrict out) {
  for (int64_t i = 0; i < count; ++i) {
    float sum = weights[0] * static_cast<float>(rows[i]);
    for (int t = 1; t < taps; ++t) sum += weights[t] * static_cast<float>(rows[t * stride + i]);
    out[i] = add ? out[i] + sum : sum;
  }
}

template <bool add>
void blend_up_to_four(const uint8_t* rows, int64_t stride, const float* weights, int64_t taps, int64_t count,
                      float* out) {
  switch (taps) {
    case 1: return blend<1, add>(rows, stride, weights, count, out);
    case 2: return blend<2, add>(rows, stride, weights, count, out);
    case 3: return blend<3, add>(rows, stride, weights, count, out);
    default: return blend<4, add>(rows, stride, weights, count, out);
  }
}

void blend_rows(const uint8_t* rows, int64_t stride, const float* weights, int64_t taps, int64_t count, float* out) {
  blend_up_to_four<false>(rows, stride, weights, taps, count, out);
  for (int64_t t = 4; t < taps; t += 4) {
    blend_up_to_four<true>(rows + t * stride, stride, weights + t, taps - t, count, out);
  }
}

// Four floats, a pixel. GCC's and Clang's own notation: the same on every processor.
using Four = float __attribute__((vector_size(16)));

inline Four load(const float* from) {
  Four value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// known_taps: the number of taps if it is small, for a loop that is none; else 0.
template <int known_taps>
void blend_pixels(const float* row, const int32_t* first, const float* weights, int64_t taps, int64_t count,
                  bool mirrored, float* out) {
  const int64_t size = known_taps > 0 ? known_taps : taps;
  for (int64_t i = 0; i < count; ++i, weights += size) {
    const float* pixel = row + 4 * int64_t{first[i]};
    Four sum = load(pixel) * weights[0];
    for (int64_t t = 1; t < size; ++t) sum += load(pixel + 4 * t) * weights[t];
    std::memcpy(out + 4 * (mirrored ? count - 1 - i : i), &sum, sizeof sum);
  }
}

void blend_grey(const float* row, const int32_t* first, const float* weights, int64_t taps, int64_t count,
                bool mirrored, float* out) {
  for (int64_t i = 0; i < count; ++i, weights += taps) {
    const float* pixel = row + first[i];
    float sum = pixel[0] * weights[0];
    for (int64_t t = 1; t < taps; ++t) sum += pixel[t] * weights[t];
    out[mirrored ? count - 1 - i : i] = sum;
  }
}

void blend_columns(const float* row, const int32_t* first, const float* weights, int64_t taps, int64_t count,
                   int64_t values, bool mirrored, float* out) {
  if (values == 1) return blend_grey(row, first, weights, taps, count, mirrored, out);
  switch (taps) {
    case 2: return blend_pixels<2>(row, first, weights, taps, count, mirrored, out);
    case 3: return blend_pixels<3>(row, first, weights, taps, count, mirrored, out);
    case 4: return blend_pixels<4>(row, first, weights, taps, count, mirrored, out);
    case 5: return blend_pixels<5>(row, first, weights, taps, count, mirrored, out);
    default: return blend_pixels<0>(row, first, weights, taps, count, mirrored, out);
  }
}

template <class T>
constexpr RowLoops<T> row_loops{planes<T>, interleaved<T>, bytes<T>};

constexpr PixelLoops all_pixel_loops{row_loops<uint8_t>, row_loops<float>, mirror, blend_rows, blend_columns};

}  // namespace
}  // namespace saturate::data::detail
