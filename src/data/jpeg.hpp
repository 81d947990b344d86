// SPDX-License-Identifier: Apache-2.0
// libjpeg-turbo, a part of an image at a time. TurboJPEG's own interface only decodes whole ones.
#pragma once

#include "pixels.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace saturate::data::detail {

/// One for each thread, used again and again.
class JpegReader {
 public:
  JpegReader();
  ~JpegReader();
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  /// Reads the header of `bytes`, which must stay until the next call. @throws DataError in libjpeg's words.
  ImageSize open(std::span<const std::byte> bytes);

  /// The size at eighths / 8 of the whole (1, 2, 4 or 8), rounded up.
  static ImageSize scaled(const ImageSize& size, int eighths);

  /// Decodes `region` of the opened image at that scale: every value as if all of it had been decoded. The view lies in
  /// `scratch`. @throws DataError when the data is damaged or truncated.
  PixelView read(int eighths, const Region& region, bool color, Scratch& scratch);

 private:
  struct Decoder;
  std::unique_ptr<Decoder> decoder_;
};

}  // namespace saturate::data::detail
