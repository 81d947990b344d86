// SPDX-License-Identifier: Apache-2.0
// libpng: any PNG to 8-bit RGB or grey, as PIL's convert("RGB") does it: 16 bits lose their low byte, palettes are
// looked up, alpha and tRNS are dropped, gAMA is ignored.
#pragma once

#include "pixels.hpp"

#include <cstddef>
#include <memory>
#include <span>

namespace saturate::data::detail {

/// One image.
class PngReader {
 public:
  /// Reads the header of `bytes`, which must outlive this. @throws DataError in libpng's words.
  explicit PngReader(std::span<const std::byte> bytes);
  ~PngReader();
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  ImageSize size() const;
  /// Decodes the image to its end, and keeps `region`. The view lies in `scratch`. Once.
  /// @throws DataError when the data is damaged or truncated.
  PixelView read(const Region& region, bool color, Scratch& scratch);

 private:
  struct Decoder;
  std::unique_ptr<Decoder> decoder_;
};

}  // namespace saturate::data::detail
