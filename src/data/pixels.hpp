// SPDX-License-Identifier: Apache-2.0
// Decoded pixels on their way into a batch: what the JPEG and the PNG reader hand to the resampler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace saturate::data::detail {

struct ImageSize {
  int64_t width = 0, height = 0;
};

/// A rectangle of pixels.
struct Region {
  int64_t x = 0, y = 0, width = 0, height = 0;
};

/// uint8 rows. Colour has four bytes a pixel, red, green, blue and one that is not used: a pixel is then a machine
/// word, which vector code likes. Grey has one.
struct PixelView {
  const uint8_t* data = nullptr;
  int64_t stride = 0;  ///< bytes from one row to the next
};

constexpr int64_t bytes_per_pixel(bool color) { return color ? 4 : 1; }

/// More pixels than any photo: refused before memory is asked for, since a damaged header can promise any number.
constexpr int64_t most_pixels = int64_t{1} << 28;
constexpr int64_t longest_side = 1'000'000;

/// @throws DataError when the image is empty or larger than that. `kind`: "JPEG".
void check_size(const ImageSize& size, const char* kind);

/// A buffer that grows and is kept, and is not cleared.
class Scratch {
 public:
  uint8_t* at_least(std::size_t bytes) {
    if (bytes > capacity_) {
      memory_.reset();  // before the larger one is asked for
      capacity_ = 0;
      memory_.reset(new uint8_t[bytes]);
      capacity_ = bytes;
    }
    return memory_.get();
  }
  float* floats(std::size_t count) { return reinterpret_cast<float*>(at_least(count * sizeof(float))); }

 private:
  std::unique_ptr<uint8_t[]> memory_;
  std::size_t capacity_ = 0;
};

}  // namespace saturate::data::detail
