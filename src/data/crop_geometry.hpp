// SPDX-License-Identifier: Apache-2.0
// Where in an image the pixels of the output come from: arithmetic alone.
#pragma once

#include "pixels.hpp"
#include "saturate/data/image_options.hpp"
#include "saturate/data/sample_at.hpp"

#include <cstdint>

namespace saturate::data::detail {

/// One axis of a resampling. Output pixel i is centred on origin + scale * (i + 0.5), where pixel k of the source spans
/// [k, k + 1); nothing outside of [low, high) is looked at.
struct Axis {
  double origin = 0, scale = 1;
  int64_t low = 0, high = 0;
  int64_t count = 0;  ///< output pixels

  /// Where copies() holds: the source pixel that output pixel 0 is.
  int64_t first_pixel() const { return static_cast<int64_t>(origin); }
  /// Output pixels are source pixels.
  bool copies() const { return scale == 1 && origin == static_cast<double>(first_pixel()); }
  /// The same on the source at eighths / 8 of its size, which is `extent` there.
  Axis scaled(int eighths, int64_t extent) const;
  bool operator==(const Axis&) const = default;
};

struct CropGeometry {
  Axis x, y;
  bool flip = false;
};

/// Offset of a centred crop (torchvision's rounding: half to even).
int64_t center_offset(int64_t extent, int64_t crop);

/// @throws DataError when the image is smaller than the crop.
CropGeometry crop_geometry(const ImageOptions& options, const ImageSize& size, SampleRandom random);

}  // namespace saturate::data::detail
