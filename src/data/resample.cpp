// SPDX-License-Identifier: Apache-2.0
#include "resample.hpp"

#include "pixel_loops.hpp"

#include <algorithm>
#include <cmath>

namespace saturate::data::detail {

namespace {

/// The source pixels and weights of one output pixel.
struct Triangle {
  double center, width;  ///< width: half of the base
  int64_t from, to;

  Triangle(const Axis& axis, int64_t i)
      : center(axis.origin + axis.scale * (static_cast<double>(i) + 0.5)), width(std::max(axis.scale, 1.0)) {
    from = std::clamp(static_cast<int64_t>(std::floor(center - width + 0.5)), axis.low, axis.high - 1);
    to = std::clamp(static_cast<int64_t>(std::floor(center + width + 0.5)), from + 1, axis.high);
    while (to - from > 1 && weight(from) == 0) ++from;
    while (to - from > 1 && weight(to - 1) == 0) --to;
  }
  double weight(int64_t k) const {
    return std::max(0.0, 1 - std::abs((static_cast<double>(k) + 0.5 - center) / width));
  }
  void write(float* weights) const {
    double sum = 0;
    for (int64_t k = from; k < to; ++k) sum += weight(k);
    for (int64_t k = from; k < to; ++k) *weights++ = sum > 0 ? static_cast<float>(weight(k) / sum) : 1.0f;
  }
};

}  // namespace

void AxisFilter::prepare(const Axis& axis) {
  if (axis == axis_) return;
  axis_ = axis;
  begin_ = axis.high;
  end_ = axis.low;
  taps_ = 0;
  first_.clear();
  sizes_.clear();
  for (int64_t i = 0; i < axis.count; ++i) {
    const Triangle triangle(axis, i);
    first_.push_back(static_cast<int32_t>(triangle.from));
    sizes_.push_back(static_cast<int32_t>(triangle.to - triangle.from));
    begin_ = std::min(begin_, triangle.from);
    end_ = std::max(end_, triangle.to);
    taps_ = std::max(taps_, triangle.to - triangle.from);
  }
  weights_.assign(static_cast<std::size_t>(axis.count * taps_), 0.0f);
  for (int64_t i = 0; i < axis.count; ++i) Triangle(axis, i).write(weights_.data() + i * taps_);
  for (int32_t& first : first_) first -= static_cast<int32_t>(begin_);
}

const float* Resampler::row(const PixelView& source, int64_t y, bool color, bool mirrored) {
  const PixelLoops& loops = pixel_loops();
  const int64_t values = bytes_per_pixel(color), across = (x_.end() - x_.begin()) * values;
  // Every output pixel takes the same number of source pixels, a loop without surprises: those past the end count 0.
  const int64_t padding = x_.taps() * values;
  float* blended = blended_.floats(static_cast<std::size_t>(across + padding));
  float* row = row_.floats(static_cast<std::size_t>(x_.count() * values));
  loops.blend_rows(source.data + y_.first()[y] * source.stride, source.stride, y_.weights() + y * y_.taps(),
                   y_.sizes()[y], across, blended);
  std::fill_n(blended + across, padding, 0.0f);
  loops.blend_columns(blended, x_.first(), x_.weights(), x_.taps(), x_.count(), values, mirrored, row);
  return row;
}

}  // namespace saturate::data::detail
