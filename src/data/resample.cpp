// SPDX-License-Identifier: Apache-2.0
#include "resample.hpp"

#include "pixel_loops.hpp"

#include <algorithm>
#include <cmath>

namespace saturate::data::detail {

void AxisFilter::prepare(const Axis& axis) {
  if (axis == axis_) return;
  axis_ = axis;
  const auto count = static_cast<std::size_t>(axis.count);
  first_.resize(count);
  sizes_.resize(count);
  most_taps_ = static_cast<int64_t>(std::ceil(std::max(axis.scale, 1.0))) * 2 + 1;
  weights_.assign(count * static_cast<std::size_t>(most_taps_), 0.0f);
  begin_ = axis.high;
  end_ = axis.low;
  for (int64_t i = 0; i < axis.count; ++i) add(i);
  for (int32_t& first : first_) first -= static_cast<int32_t>(begin_);
}

void AxisFilter::add(int64_t i) {
  const double width = std::max(axis_.scale, 1.0);  // half of the triangle's base
  const double center = axis_.origin + axis_.scale * (static_cast<double>(i) + 0.5);
  auto from = std::clamp(static_cast<int64_t>(std::floor(center - width + 0.5)), axis_.low, axis_.high - 1);
  auto to = std::clamp(static_cast<int64_t>(std::floor(center + width + 0.5)), from + 1, axis_.high);
  const auto weight = [&](int64_t k) {
    return std::max(0.0, 1 - std::abs((static_cast<double>(k) + 0.5 - center) / width));
  };
  while (to - from > 1 && weight(from) == 0) ++from;
  while (to - from > 1 && weight(to - 1) == 0) --to;
  taps_.clear();
  double sum = 0;
  for (int64_t k = from; k < to; ++k) {
    taps_.push_back(weight(k));
    sum += taps_.back();
  }
  float* weights = weights_.data() + i * most_taps_;
  for (const double tap : taps_) *weights++ = sum > 0 ? static_cast<float>(tap / sum) : 1.0f;
  first_[static_cast<std::size_t>(i)] = static_cast<int32_t>(from);
  sizes_[static_cast<std::size_t>(i)] = static_cast<int32_t>(to - from);
  begin_ = std::min(begin_, from);
  end_ = std::max(end_, to);
}

const float* Resampler::row(const PixelView& source, int64_t y, bool color, bool mirrored) {
  const PixelLoops& loops = pixel_loops();
  const int64_t values = bytes_per_pixel(color), across = (x_.end() - x_.begin()) * values;
  float* blended = blended_.floats(static_cast<std::size_t>(across));
  float* row = row_.floats(static_cast<std::size_t>(x_.count() * values));
  loops.blend_rows(source.data + y_.first()[y] * source.stride, source.stride, y_.weights() + y * y_.most_taps(),
                   y_.sizes()[y], across, blended);
  loops.blend_columns(blended, x_.first(), x_.sizes(), x_.weights(), x_.most_taps(), x_.count(), values, mirrored, row);
  return row;
}

}  // namespace saturate::data::detail
