// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/crop_flip_normalize.hpp"

#include "saturate/data/image_decoder.hpp"
#include "saturate/error.hpp"
#include "unit/data/images.hpp"

#include <torch/torch.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <cmath>
#include <set>

using namespace saturate::data;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

namespace {

const std::vector<double> mean{0.485, 0.456, 0.406}, spread{0.229, 0.224, 0.225};

std::vector<SampleAt> places(int64_t count, int64_t epoch = 0, int64_t first = 0) {
  std::vector<SampleAt> at;
  for (int64_t i = 0; i < count; ++i) at.emplace_back(i, 17, epoch, first + i);
  return at;
}

at::Tensor noise(int64_t n, int64_t c, int64_t h, int64_t w) {
  torch::manual_seed(n + c + h + w);
  return torch::randint(0, 256, {n, c, h, w}, at::kByte);
}

at::Tensor normalized(const at::Tensor& pixels) {
  const auto column = [](const std::vector<double>& v) { return torch::tensor(v, at::kFloat).view({-1, 1, 1}); };
  return pixels.to(at::kFloat).div(255).sub(column(mean)).div(column(spread));
}

}  // namespace

TEST_CASE("a centred crop has the bits of torch's operators", "[data][images]") {
  const auto images = noise(3, 3, 11, 14);
  const auto expected = normalized(images.slice(2, 2, 8).slice(3, 4, 11));  // 2.5 and 3.5, to even
  for (const bool last : {false, true}) {
    const CropFlipNormalize center(
        {.height = 6, .width = 7, .crop = Crop::center, .mean = mean, .std = spread, .channels_last = last});
    for (const auto& input : {images, images.contiguous(at::MemoryFormat::ChannelsLast), images.flip(3).flip(3)}) {
      const auto values = center.apply(input, places(3));
      REQUIRE(values.equal(expected));
      REQUIRE(values.is_contiguous(last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous));
    }
  }
  const CropFlipNormalize mirrored(
      {.height = 6, .width = 7, .crop = Crop::center, .flip = 1, .mean = mean, .std = spread});
  REQUIRE(mirrored.apply(images, places(3)).equal(expected.flip(3)));
  // Views that are neither contiguous nor channels_last.
  REQUIRE(mirrored.apply(images.transpose(2, 3).contiguous().transpose(2, 3), places(3)).equal(expected.flip(3)));
}

TEST_CASE("random crops and flips are those of the decoder", "[data][images]") {
  const auto file = images::load("rgb.png");
  const ImageDecoder floats({.height = 9, .width = 12, .crop = Crop::random, .flip = 0.5, .mean = mean, .std = spread});
  const ImageDecoder bytes(
      {.height = 17, .width = 23, .crop = Crop::center, .format = ImageFormat::uint8_channels_last});
  const auto pixels = torch::tensor(images::decode<uint8_t>(bytes, file), at::kByte).view({1, 17, 23, 3});
  const auto batch = pixels.permute({0, 3, 1, 2}).expand({20, -1, -1, -1});
  const CropFlipNormalize finish({.height = 9, .width = 12, .flip = 0.5, .mean = mean, .std = spread});
  const auto at = places(20, 3, 40);
  const auto values = finish.apply(batch, at);
  std::set<std::string> different;
  for (int64_t i = 0; i < 20; ++i) {
    const auto decoded = images::decode<float>(floats, file, at[static_cast<std::size_t>(i)]);
    REQUIRE(values[i].contiguous().flatten().equal(torch::tensor(decoded)));
    different.emplace(reinterpret_cast<const char*>(decoded.data()), decoded.size() * sizeof(float));
  }
  REQUIRE(different.size() > 15);
}

TEST_CASE("as a batch transform it replaces the first field and leaves the others", "[data][images]") {
  const auto labels = torch::arange(4);
  std::vector<at::Tensor> fields{noise(4, 1, 8, 8), labels};
  const auto before = fields[0];
  const CropFlipNormalize finish({.height = 8, .width = 8, .mean = {0.5}, .std = {0.25}});
  finish(fields, places(4));
  REQUIRE(fields[0].equal(before.to(at::kFloat).div(255).sub(0.5).div(0.25)));
  REQUIRE(fields[1].is_same(labels));
  std::vector<at::Tensor> none{noise(0, 3, 8, 8)};
  finish(none, {});
  REQUIRE(none[0].sizes() == at::IntArrayRef{0, 3, 8, 8});
}

TEST_CASE("crops that cannot work are refused, and the batch stays", "[data][images]") {
  const auto refused = [](const std::string& words, CropFlipNormalizeOptions options) {
    REQUIRE_THROWS_MATCHES(CropFlipNormalize(options), saturate::ConfigError, MessageMatches(ContainsSubstring(words)));
  };
  refused("height is 0", {.height = 0});
  refused("width is 70000", {.width = 70000});
  refused("crop must be", {.crop = Crop::none});
  refused("crop must be", {.crop = Crop::random_resized});
  refused("flip is", {.flip = -0.1});
  refused("mean holds", {.mean = {std::nan("")}});
  refused("std holds 0", {.std = {0.0}});
  refused("std has 5 values", {.std = {1, 1, 1, 1, 1}});

  const CropFlipNormalize finish({.height = 8, .width = 8, .mean = {0.1, 0.2}});
  const auto bad = [&]<class E>(const std::string& words, const at::Tensor& images, int64_t count, E*) {
    std::vector<at::Tensor> fields{images};
    REQUIRE_THROWS_MATCHES(finish(fields, places(count)), E, MessageMatches(ContainsSubstring(words)));
    REQUIRE(fields[0].is_same(images));
  };
  saturate::DataError* data = nullptr;
  bad("undefined", at::Tensor(), 0, data);
  bad("uint8 tensor", torch::zeros({2, 3, 8, 8}), 2, data);
  bad("3 dimensions", noise(1, 3, 8, 8)[0], 1, data);
  bad("5 channels", noise(1, 5, 8, 8), 1, data);
  bad("smaller than the crop of 8 x 8", noise(1, 2, 7, 9), 1, data);
  bad("2 images, and positions of 3", noise(2, 2, 8, 8), 3, data);
  bad("mean has 2 values for 3 channels", noise(2, 3, 8, 8), 2, static_cast<saturate::ConfigError*>(nullptr));
  REQUIRE_THROWS_AS(finish({}, {}), saturate::DataError);
}
