// SPDX-License-Identifier: Apache-2.0
#include "../../../src/data/resample.hpp"
#include "../../../src/data/crop_geometry.hpp"
#include "../../../src/data/pixel_loops.hpp"
#include "saturate/error.hpp"
#include "unit/data/images.hpp"
#include "unit/precision/oracle.hpp"

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

using namespace saturate::data;
using namespace saturate::data::detail;

namespace {

const auto& oracle() {
  static const auto cases = support::oracle("images.txt");
  return cases;
}

/// Greatest difference of values in 0..1 to the oracle's in 0..255, in the latter's units.
double difference(const std::vector<float>& values, const std::string& name) {
  const auto& expected = oracle().at(name);
  REQUIRE(values.size() == expected.size());
  double most = 0;
  for (std::size_t i = 0; i < values.size(); ++i)
    most = std::max(most, std::abs(255.0 * static_cast<double>(values[i]) - expected[i]));
  return most;
}

std::vector<float> resampled(const ImageOptions& options) {
  return images::decode<float>(ImageDecoder(options), images::load("rgb.png"));
}

// Reads the fixture's red plane out of its pixels and resamples it alone.
std::vector<float> grey_rectangle(const Region& from, int64_t height, int64_t width, int channel) {
  const auto rgb = images::load("rgb.rgb");
  std::vector<uint8_t> plane(17 * 23);
  for (std::size_t i = 0; i < plane.size(); ++i)
    plane[i] = static_cast<uint8_t>(rgb[3 * i + static_cast<std::size_t>(channel)]);
  const auto axis = [](int64_t offset, int64_t extent, int64_t count) {
    return Axis{static_cast<double>(offset), static_cast<double>(extent) / static_cast<double>(count), offset,
                offset + extent, count};
  };
  Resampler resampler;
  resampler.prepare(axis(from.x, from.width, width), axis(from.y, from.height, height));
  const Region region = resampler.region();
  const PixelView view{plane.data() + region.y * 23 + region.x, 23};
  std::vector<float> result;
  for (int64_t y = 0; y < height; ++y) {
    const float* row = resampler.row(view, y, /*color=*/false, /*mirrored=*/false);
    for (int64_t x = 0; x < width; ++x) result.push_back(row[x] / 255);
  }
  return result;
}

std::vector<float> rectangle(const Region& from, int64_t height, int64_t width) {
  std::vector<float> all;
  for (int c = 0; c < 3; ++c) {
    const auto plane = grey_rectangle(from, height, width, c);
    all.insert(all.end(), plane.begin(), plane.end());
  }
  return all;
}

}  // namespace

TEST_CASE("resized images are those of torch's antialiased bilinear interpolation", "[data][images]") {
  REQUIRE(difference(resampled({.height = 9, .width = 11}), "down_9_11") < 1e-3);
  REQUIRE(difference(resampled({.height = 2, .width = 3}), "down_2_3") < 1e-3);
  REQUIRE(difference(resampled({.height = 20, .width = 30}), "up_20_30") < 1e-3);
  REQUIRE(difference(resampled({.height = 5, .width = 31}), "mixed_5_31") < 1e-3);
  // The oracle tells one geometry from another.
  REQUIRE(difference(resampled({.height = 31, .width = 5}), "mixed_5_31") > 10);
}

TEST_CASE("a crop of a resized image is torchvision's Resize and CenterCrop", "[data][images]") {
  ImageOptions options{.height = 8, .width = 9, .crop = Crop::center, .resize = 12};
  REQUIRE(difference(resampled(options), "shorter_12_center_8_9") < 1e-3);
  options = {.height = 10, .width = 11, .crop = Crop::center, .resize = 30};
  REQUIRE(difference(resampled(options), "shorter_30_center_10_11") < 1e-3);
}

TEST_CASE("a rectangle is resized as if the rest of the image were not there", "[data][images]") {
  REQUIRE(difference(rectangle({3, 2, 9, 11}, 7, 8), "crop_2_3_11_9_to_7_8") < 1e-3);
  REQUIRE(difference(rectangle({10, 6, 12, 5}, 9, 4), "crop_6_10_5_12_to_9_4") < 1e-3);
}

TEST_CASE("whatever the geometry, weights sum to 1 and stay inside", "[data][images]") {
  SampleRandom random(5, 1);
  AxisFilter filter;
  for (int round = 0; round < 4000; ++round) {
    const auto extent = 1 + static_cast<int64_t>(random.below(round % 10 == 0 ? 3000 : 60));
    const auto low = static_cast<int64_t>(random.below(static_cast<uint64_t>(extent)));
    const auto high = low + 1 + static_cast<int64_t>(random.below(static_cast<uint64_t>(extent - low)));
    const auto count = 1 + static_cast<int64_t>(random.below(50));
    Axis axis{static_cast<double>(low), static_cast<double>(high - low) / static_cast<double>(count), low, high, count};
    if (round % 2 == 1) axis = axis.scaled(4, (extent + 1) / 2);
    filter.prepare(axis);
    REQUIRE(filter.begin() >= axis.low);
    REQUIRE(filter.end() <= axis.high);
    REQUIRE(filter.begin() < filter.end());
    for (int64_t i = 0; i < count; ++i) {
      const auto first = filter.first()[i], size = filter.sizes()[i];
      const bool inside =
          first >= 0 && size >= 1 && size <= filter.taps() && filter.begin() + first + size <= filter.end();
      REQUIRE(inside);
      double sum = 0;
      for (int64_t t = 0; t < size; ++t) sum += filter.weights()[i * filter.taps() + t];
      REQUIRE(std::abs(sum - 1) < 1e-5);
    }
  }
}

TEST_CASE("random rectangles are inside, of the areas and ratios asked for, and all over the image", "[data][images]") {
  const ImageSize size{120, 90};
  const ImageOptions options{.height = 10, .width = 10, .crop = Crop::random_resized, .scale = {0.2, 0.6}, .flip = 0.5};
  double flips = 0, area = 0;
  double left = 1e9, right = 0, top = 1e9, bottom = 0;
  constexpr int rounds = 4000;
  for (int position = 0; position < rounds; ++position) {
    const auto found = crop_geometry(options, size, SampleRandom(SampleAt(0, 3, 1, position)));
    REQUIRE((found.x.low >= 0 && found.x.high <= size.width && found.y.low >= 0 && found.y.high <= size.height));
    const auto width = static_cast<double>(found.x.high - found.x.low);
    const auto height = static_cast<double>(found.y.high - found.y.low);
    const double share = width * height / (120 * 90), ratio = width / height;
    REQUIRE((share > 0.19 && share < 0.61));
    REQUIRE((ratio > 0.75 * 0.95 && ratio < 1.05 * 4 / 3));
    flips += found.flip;
    area += share;
    left = std::min(left, static_cast<double>(found.x.low));
    top = std::min(top, static_cast<double>(found.y.low));
    right = std::max(right, static_cast<double>(found.x.high));
    bottom = std::max(bottom, static_cast<double>(found.y.high));
  }
  REQUIRE(std::abs(flips / rounds - 0.5) < 0.04);
  REQUIRE(std::abs(area / rounds - 0.4) < 0.02);
  REQUIRE((left == 0 && top == 0 && right == 120 && bottom == 90));
}

TEST_CASE("where no rectangle fits, the middle of a permitted ratio is taken", "[data][images]") {
  const ImageOptions options{.height = 8, .width = 8, .crop = Crop::random_resized, .scale = {0.9, 1}};
  for (const auto& [size, expected] :
       {std::pair{ImageSize{400, 10}, Region{193, 0, 13, 10}}, std::pair{ImageSize{10, 400}, Region{0, 193, 10, 13}},
        std::pair{ImageSize{1, 1}, Region{0, 0, 1, 1}}}) {
    const auto found = crop_geometry(options, size, SampleRandom(1, 2));
    REQUIRE((found.x.low == expected.x && found.x.high == expected.x + expected.width));
    REQUIRE((found.y.low == expected.y && found.y.high == expected.y + expected.height));
  }
}

TEST_CASE("random crops reach every offset, center crops round as torchvision's", "[data][images]") {
  ImageOptions options{.height = 6, .width = 7, .crop = Crop::random};
  std::vector<int> seen(5 * 3);
  for (int position = 0; position < 600; ++position) {
    const auto found = crop_geometry(options, {11, 8}, SampleRandom(SampleAt(0, 0, 0, position)));
    REQUIRE((found.x.copies() && found.y.copies()));
    ++seen.at(static_cast<std::size_t>(found.x.origin) * 3 + static_cast<std::size_t>(found.y.origin));
  }
  REQUIRE(*std::min_element(seen.begin(), seen.end()) > 10);
  REQUIRE(center_offset(10, 5) == 2);  // 2.5
  REQUIRE(center_offset(12, 5) == 4);  // 3.5
  REQUIRE_THROWS_AS(crop_geometry(options, {6, 8}, SampleRandom(0, 0)), saturate::DataError);
}

TEST_CASE("the loops of all instruction sets give the same bits", "[data][images]") {
  const PixelLoops &fast = pixel_loops(), &slow = portable_pixel_loops();
  SampleRandom random(9, 9);
  const Normalization by{{0.485f, 0.456f, 0.406f}, {0.229f, 0.224f, 0.225f}};
  for (int64_t count = 1; count < 300; count += count < 40 ? 1 : 37) {
    for (const int64_t channels : {1, 3}) {
      const int64_t values = channels == 3 ? 4 : 1;
      std::vector<uint8_t> rows(static_cast<std::size_t>(9 * count * values));
      for (auto& byte : rows) byte = static_cast<uint8_t>(random.below(256));
      std::vector<float> floats(rows.size());
      for (auto& value : floats) value = static_cast<float>(random.uniform(-3, 258));
      const auto same = [&](auto run) {
        std::vector<float> a(static_cast<std::size_t>(count * 4), -1), b(a);
        run(fast, a.data());
        run(slow, b.data());
        return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
      };
      const auto bytes = [](float* out) { return reinterpret_cast<uint8_t*>(out); };
      const auto both = [&](auto loops, const auto* row) {
        REQUIRE(same([&](const PixelLoops& l, float* out) { loops(l).planes(row, count, channels, by, out, count); }));
        REQUIRE(same([&](const PixelLoops& l, float* out) { loops(l).interleaved(row, count, channels, by, out); }));
        REQUIRE(same([&](const PixelLoops& l, float* out) { loops(l).bytes(row, count, channels, bytes(out)); }));
      };
      both(
          [](const PixelLoops& l) -> const auto& { return l.of_bytes; }, rows.data());
      both(
          [](const PixelLoops& l) -> const auto& { return l.of_floats; }, floats.data());
      REQUIRE(same([&](const PixelLoops& l, float* out) { l.mirror(rows.data(), count, values, bytes(out)); }));
      const float weights[] = {0.1f, 0.3f, 0.2f, 0.15f, 0.1f, 0.05f, 0.04f, 0.03f, 0.03f};
      for (int64_t taps = 1; taps <= 9; ++taps) {
        REQUIRE(same([&](const PixelLoops& l, float* out) {
          l.blend_rows(rows.data(), count * values, weights, taps, count * values, out);
        }));
        if (count < taps) continue;
        std::vector<int32_t> first;
        std::vector<float> by_pixel;
        for (int64_t i = 0; i < count; ++i) {
          first.push_back(static_cast<int32_t>(std::min(i, count - taps)));
          by_pixel.insert(by_pixel.end(), weights, weights + taps);
        }
        REQUIRE(same([&](const PixelLoops& l, float* out) {
          l.blend_columns(floats.data(), first.data(), by_pixel.data(), taps, count, values, taps % 2 == 0, out);
        }));
      }
    }
  }
}

TEST_CASE("bytes become floats with the bits of (x / 255 - mean) / std, bytes again without a change",
          "[data][images]") {
  std::vector<uint8_t> pixels(256);
  for (std::size_t i = 0; i < 256; ++i) pixels[i] = static_cast<uint8_t>(i);
  for (const float mean : {0.0f, 0.485f, -2.0f}) {
    for (const float std : {1.0f, 0.229f, 3e-5f}) {
      const Normalization by{{mean}, {std}};
      std::vector<float> values(256);
      pixel_loops().of_bytes.planes(pixels.data(), 256, 1, by, values.data(), 256);
      for (std::size_t i = 0; i < 256; ++i) REQUIRE(values[i] == (static_cast<float>(i) / 255.0f - mean) / std);
    }
  }
  const float rounding[] = {-5, -0.4f, 0.4f, 0.5f, 1.49f, 254.6f, 255.4f, 300};
  uint8_t rounded[8];
  pixel_loops().of_floats.bytes(rounding, 8, 1, rounded);
  REQUIRE(std::vector<int>(rounded, rounded + 8) == std::vector<int>{0, 0, 0, 1, 1, 255, 255, 255});
}
