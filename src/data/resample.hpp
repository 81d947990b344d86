// SPDX-License-Identifier: Apache-2.0
// Separable, antialiased, bilinear: a triangle as wide as two source pixels, or two output pixels where those are
// larger; the values of torch's interpolate(mode="bilinear", antialias=True, align_corners=False), and of PIL.
#pragma once

#include "crop_geometry.hpp"
#include "pixels.hpp"

#include <cstdint>
#include <vector>

namespace saturate::data::detail {

/// The weights of one axis.
class AxisFilter {
 public:
  /// Does nothing when `axis` is that of the last call: images of one size share their weights.
  void prepare(const Axis& axis);

  /// Source pixels that are looked at: [begin, end).
  int64_t begin() const { return begin_; }
  int64_t end() const { return end_; }
  int64_t count() const { return axis_.count; }
  /// The first of output pixel i's, counted from begin().
  const int32_t* first() const { return first_.data(); }
  /// How many output pixel i looks at. All have taps() weights, from i * taps() on, the rest of them 0; their sum is 1.
  const int32_t* sizes() const { return sizes_.data(); }
  const float* weights() const { return weights_.data(); }
  int64_t taps() const { return taps_; }

 private:
  Axis axis_;
  int64_t begin_ = 0, end_ = 0, taps_ = 0;
  std::vector<int32_t> first_, sizes_;
  std::vector<float> weights_;
};

/// Takes the rows of a resampled image one after the other.
class Resampler {
 public:
  void prepare(const Axis& x, const Axis& y) {
    x_.prepare(x);
    y_.prepare(y);
  }
  /// What prepare()'s axes look at.
  Region region() const { return {x_.begin(), y_.begin(), x_.end() - x_.begin(), y_.end() - y_.begin()}; }
  /// Row `y` of the output, mirrored if asked: four floats a pixel (one when not `color`) in 0..255, which stay until
  /// the next call. `source` is region().
  const float* row(const PixelView& source, int64_t y, bool color, bool mirrored);

 private:
  AxisFilter x_, y_;
  Scratch blended_, row_;
};

}  // namespace saturate::data::detail
