// SPDX-License-Identifier: Apache-2.0
#include "crop_geometry.hpp"

#include "saturate/error.hpp"

#include <algorithm>
#include <cmath>
#include <string>

namespace saturate::data::detail {
namespace {

int64_t rounded(double value) { return static_cast<int64_t>(std::nearbyint(value)); }  // half to even

Axis whole(int64_t offset, int64_t extent, int64_t count) {
  return {static_cast<double>(offset), static_cast<double>(extent) / static_cast<double>(count), offset,
          offset + extent, count};
}

// torchvision's RandomResizedCrop: ten tries, then the largest centred rectangle of a permitted ratio.
Region random_rectangle(const ImageOptions& options, const ImageSize& size, SampleRandom& random) {
  const auto width = static_cast<double>(size.width), height = static_cast<double>(size.height);
  const double low = std::log(options.ratio[0]), high = std::log(options.ratio[1]);
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double area = width * height * random.uniform(options.scale[0], options.scale[1]);
    const double ratio = std::exp(random.uniform(low, high));
    const int64_t w = rounded(std::sqrt(area * ratio)), h = rounded(std::sqrt(area / ratio));
    if (w < 1 || h < 1 || w > size.width || h > size.height) continue;
    const auto y = static_cast<int64_t>(random.below(static_cast<uint64_t>(size.height - h + 1)));
    const auto x = static_cast<int64_t>(random.below(static_cast<uint64_t>(size.width - w + 1)));
    return {x, y, w, h};
  }
  int64_t w = size.width, h = size.height;
  if (width / height < options.ratio[0]) h = std::clamp<int64_t>(rounded(width / options.ratio[0]), 1, h);
  if (width / height > options.ratio[1]) w = std::clamp<int64_t>(rounded(height * options.ratio[1]), 1, w);
  return {(size.width - w) / 2, (size.height - h) / 2, w, h};
}

ImageSize resized(const ImageSize& size, int64_t shorter) {
  if (shorter == 0) return size;
  const int64_t least = std::min(size.width, size.height), most = std::max(size.width, size.height);
  const int64_t longer = shorter * most / least;
  return size.width <= size.height ? ImageSize{shorter, longer} : ImageSize{longer, shorter};
}

// A window of the resized image.
Axis window(int64_t extent, int64_t resized_extent, int64_t offset, int64_t count) {
  const double scale = static_cast<double>(extent) / static_cast<double>(resized_extent);
  return {scale * static_cast<double>(offset), scale, 0, extent, count};
}

void check_room(const ImageOptions& options, const ImageSize& size, const ImageSize& image) {
  if (image.width >= options.width && image.height >= options.height) return;
  const auto text = [](const ImageSize& s) { return std::to_string(s.width) + " x " + std::to_string(s.height); };
  throw DataError("an image of " + text(size) + (options.resize > 0 ? ", resized to " + text(image) + "," : "") +
                  " is smaller than the crop of " + text({options.width, options.height}) +
                  ": let ImageOptions::resize make it large enough");
}

}  // namespace

Axis Axis::scaled(int eighths, int64_t extent) const {
  const double factor = eighths / 8.0;
  const auto first = static_cast<int64_t>(std::floor(static_cast<double>(low) * factor));
  const auto last = static_cast<int64_t>(std::ceil(static_cast<double>(high) * factor));
  return {origin * factor, scale * factor, first, std::min(last, extent), count};
}

int64_t center_offset(int64_t extent, int64_t crop) { return rounded(static_cast<double>(extent - crop) / 2); }

CropGeometry crop_geometry(const ImageOptions& options, const ImageSize& size, SampleRandom random) {
  CropGeometry result;
  result.flip = random.uniform() < options.flip;  // drawn in any case: the crop does not depend on the option
  if (options.crop == Crop::none || options.crop == Crop::random_resized) {
    Region from{0, 0, size.width, size.height};
    if (options.crop == Crop::random_resized) from = random_rectangle(options, size, random);
    result.x = whole(from.x, from.width, options.width);
    result.y = whole(from.y, from.height, options.height);
    return result;
  }
  const ImageSize image = resized(size, options.resize);
  check_room(options, size, image);
  const auto offset = [&](int64_t extent, int64_t crop) {
    if (options.crop == Crop::center) return center_offset(extent, crop);
    return static_cast<int64_t>(random.below(static_cast<uint64_t>(extent - crop + 1)));
  };
  const int64_t y = offset(image.height, options.height), x = offset(image.width, options.width);
  result.x = window(size.width, image.width, x, options.width);
  result.y = window(size.height, image.height, y, options.height);
  return result;
}

}  // namespace saturate::data::detail
