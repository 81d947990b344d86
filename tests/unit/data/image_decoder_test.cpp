// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/image_decoder.hpp"

#include "../../../src/data/jpeg.hpp"
#include "saturate/error.hpp"
#include "saturate/log.hpp"
#include "unit/data/images.hpp"
#include "unit/precision/oracle.hpp"

#include <turbojpeg.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <thread>

using namespace saturate::data;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;
using images::Bytes;
using images::decode;
using images::load;

namespace {

namespace internal = saturate::data::detail;

ImageOptions exactly(int64_t height, int64_t width) {
  return {.height = height, .width = width, .crop = Crop::center, .format = ImageFormat::uint8_channels_last};
}

/// Greatest difference to NAME.rgb.
int difference(const std::string& name, int64_t height, int64_t width) {
  const auto pixels = decode<uint8_t>(ImageDecoder(exactly(height, width)), load(name));
  const auto expected = load(name.substr(0, name.find('.')) + ".rgb");
  REQUIRE(pixels.size() == expected.size());
  int most = 0;
  for (std::size_t i = 0; i < pixels.size(); ++i)
    most = std::max(most, std::abs(int{pixels[i]} - int{static_cast<uint8_t>(expected[i])}));
  return most;
}

void require_error(const std::string& name, const std::string& words) {
  const auto image = load(name);
  std::vector<uint8_t> pixels(3 * 8 * 8);
  int64_t label;
  const ImageDecoder decoder({.height = 8, .width = 8, .format = ImageFormat::uint8_channels_last});
  CAPTURE(name);
  REQUIRE_THROWS_MATCHES(
      decoder.decode(images::record_of(image, {'1'}), 0,
                     {reinterpret_cast<std::byte*>(pixels.data()), reinterpret_cast<std::byte*>(&label)},
                     "shard 7, sample 'x'"),
      saturate::DataError, MessageMatches(ContainsSubstring("shard 7, sample 'x': ") && ContainsSubstring(words)));
}

/// A JPEG of smooth noise.
Bytes encode(int width, int height, int subsampling, bool progressive, SampleRandom& random) {
  std::vector<unsigned char> pixels(static_cast<std::size_t>(width * height * 3));
  const double a = random.uniform(0.02, 0.5), b = random.uniform(0.02, 0.5);
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < 3; ++c) {
        const double wave = std::sin(a * x + c) * std::cos(b * y - c) * 100 + 128 + random.uniform(-20, 20);
        pixels[static_cast<std::size_t>((y * width + x) * 3 + c)] = static_cast<unsigned char>(wave);
      }
    }
  }
  const tjhandle handle = tjInitCompress();
  unsigned char* out = nullptr;
  unsigned long size = 0;
  const int failed = tjCompress2(handle, pixels.data(), width, 0, height, TJPF_RGB, &out, &size, subsampling, 90,
                                 progressive ? TJFLAG_PROGRESSIVE : 0);
  Bytes bytes(out, out + size);
  tjFree(out);
  tjDestroy(handle);
  REQUIRE(failed == 0);
  return bytes;
}

bool same_pixels(const internal::PixelView& whole, const internal::Region& region, const internal::PixelView& part,
                 bool color) {
  const int64_t pixel = internal::bytes_per_pixel(color);
  for (int64_t y = 0; y < region.height; ++y) {
    const uint8_t* from = whole.data + (y + region.y) * whole.stride + region.x * pixel;
    if (std::memcmp(from, part.data + y * part.stride, static_cast<std::size_t>(region.width * pixel)) != 0)
      return false;
  }
  return true;
}

int64_t label_of(const ImageOptions& options, const Record& record) {
  const ImageDecoder decoder(options);
  std::vector<std::byte> pixels(static_cast<std::size_t>(decoder.layout()[0].bytes()));
  int64_t label = -1;
  decoder.decode(record, 0, {pixels.data(), reinterpret_cast<std::byte*>(&label)});
  return label;
}

}  // namespace

TEST_CASE("JPEGs of every kind have the pixels that PIL gives", "[data][images]") {
  for (const char* name : {"baseline_444.jpg", "baseline_422.jpg", "baseline_420.jpg", "progressive_420.jpg",
                           "restart_420.jpg", "rgb_444.jpg", "cmyk.jpg", "grey.jpg", "trailing.jpg"}) {
    CAPTURE(name);
    REQUIRE(difference(name, 35, 45) == 0);
  }
}

TEST_CASE("PNGs of every kind have the pixels they hold: 16 bits cut, alpha and gamma ignored", "[data][images]") {
  for (const char* name :
       {"rgb.png", "gamma.png", "interlaced.png", "rgb16.png", "rgba.png", "rgb_key.png", "grey_png.png", "grey16.png",
        "grey_alpha.png", "grey1.png", "grey4.png", "palette.png", "palette4.png", "palette_key.png"}) {
    CAPTURE(name);
    REQUIRE(difference(name, 17, 23) == 0);
  }
}

TEST_CASE("one channel is ITU-R 601 luma", "[data][images]") {
  for (const auto& [name, height, width] :
       {std::tuple{"rgb.png", 17, 23}, std::tuple{"palette.png", 17, 23}, std::tuple{"interlaced.png", 17, 23},
        std::tuple{"grey16.png", 17, 23}, std::tuple{"baseline_444.jpg", 35, 45}, std::tuple{"rgb_444.jpg", 35, 45},
        std::tuple{"cmyk.jpg", 35, 45}, std::tuple{"grey.jpg", 35, 45}}) {
    CAPTURE(name);
    auto options = exactly(height, width);
    options.channels = 1;
    const auto grey = decode<uint8_t>(ImageDecoder(options), load(name));
    const auto rgb = load(std::string(name).substr(0, std::string(name).find('.')) + ".rgb");
    for (std::size_t i = 0; i < grey.size(); ++i) {
      const auto value = [&](std::size_t c) { return static_cast<double>(static_cast<uint8_t>(rgb[3 * i + c])); };
      REQUIRE(std::abs(grey[i] - (0.299 * value(0) + 0.587 * value(1) + 0.114 * value(2))) < 2.0);
    }
  }
}

TEST_CASE("damaged images are errors that name the sample, never half an image", "[data][images]") {
  require_error("truncated.jpg", "JPEG: ");
  require_error("truncated_progressive.jpg", "JPEG: ");
  require_error("cut_end.jpg", "JPEG: ");
  require_error("no_end_mark.jpg", "Premature end");
  require_error("damaged.jpg", "Corrupt JPEG data");
  require_error("huge.jpg", "65000 x 65000");
  require_error("truncated.png", "Premature end of file");
  require_error("cut_end.png", "Premature end of file");
  require_error("damaged.png", "PNG: ");
  require_error("huge.png", "1073741824 x 1073741824");
  require_error("promises.png", "promises more");
  require_error("make_fixtures.py", "neither JPEG nor PNG");
}

TEST_CASE("no prefix of a file passes for an image, even if the crop is above the cut", "[data][images]") {
  for (const char* name : {"baseline_420.jpg", "progressive_420.jpg", "rgb.png", "interlaced.png"}) {
    const bool jpeg = std::string(name).ends_with("jpg");
    const ImageDecoder whole(exactly(jpeg ? 35 : 17, jpeg ? 45 : 23));
    // At (epoch, position) 0 / k: some crop of the image's upper part among them.
    const ImageDecoder part(
        {.height = 3, .width = 5, .crop = Crop::random, .format = ImageFormat::uint8_channels_last});
    const auto file = load(name);
    for (std::size_t size = 0; size < file.size(); size += size < 40 || size > file.size() - 40 ? 1 : 11) {
      const Bytes prefix(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size));
      CAPTURE(name, size, file.size());
      REQUIRE_THROWS_AS(decode<uint8_t>(whole, prefix), saturate::DataError);
      for (int64_t k = 0; k < 4; ++k)
        REQUIRE_THROWS_AS(decode<uint8_t>(part, prefix, SampleAt(0, 0, 0, k)), saturate::DataError);
    }
    REQUIRE_NOTHROW(decode<uint8_t>(whole, file));
  }
}

TEST_CASE("a file with any bytes changed is decoded or refused, and the next one is decoded", "[data][images]") {
  SampleRandom random(11, 4);
  for (const char* name : {"baseline_420.jpg", "progressive_420.jpg", "cmyk.jpg", "palette4.png", "rgb16.png"}) {
    const auto file = load(name);
    const ImageDecoder decoder({.height = 9, .width = 9, .crop = Crop::random_resized, .flip = 0.5});
    const auto expected = decode<float>(decoder, file);
    int refused = 0;
    for (int round = 0; round < 300; ++round) {
      Bytes changed = file;
      for (uint64_t k = 0; k <= random.below(4); ++k)
        changed[random.below(changed.size())] = static_cast<char>(random.below(256));
      try {
        decode<float>(decoder, changed, SampleAt(0, 1, 2, round));
      } catch (const saturate::DataError&) {
        ++refused;
      }
    }
    REQUIRE(refused > 30);
    REQUIRE(decode<float>(decoder, file) == expected);
  }
}

TEST_CASE("a part of a JPEG has the bits of the whole one, at every scale", "[data][images]") {
  SampleRandom random(21, 1);
  internal::JpegReader reader;
  internal::Scratch whole_scratch, part_scratch;
  for (int round = 0; round < 300; ++round) {
    const int subsampling =
        std::array{TJSAMP_444, TJSAMP_422, TJSAMP_420, TJSAMP_GRAY, TJSAMP_440, TJSAMP_411}[random.below(6)];
    const int width = 1 + static_cast<int>(random.below(150)), height = 1 + static_cast<int>(random.below(150));
    const bool progressive = random.below(4) == 0, color = random.below(5) != 0;
    const auto file = encode(width, height, subsampling, progressive, random);
    const auto size = reader.open(images::span_of(file));
    REQUIRE((size.width == width && size.height == height));
    const int eighths = std::array{8, 8, 4, 2, 1}[random.below(5)];
    const auto scaled = internal::JpegReader::scaled(size, eighths);
    const auto whole = reader.read(eighths, {0, 0, scaled.width, scaled.height}, color, whole_scratch);
    for (int crop = 0; crop < 5; ++crop) {
      internal::Region region;
      region.x = static_cast<int64_t>(random.below(static_cast<uint64_t>(scaled.width)));
      region.y = static_cast<int64_t>(random.below(static_cast<uint64_t>(scaled.height)));
      region.width = 1 + static_cast<int64_t>(random.below(static_cast<uint64_t>(scaled.width - region.x)));
      region.height = 1 + static_cast<int64_t>(random.below(static_cast<uint64_t>(scaled.height - region.y)));
      CAPTURE(width, height, subsampling, progressive, color, eighths, region.x, region.y, region.width, region.height);
      reader.open(images::span_of(file));
      const auto part = reader.read(eighths, region, color, part_scratch);
      REQUIRE(same_pixels(whole, region, part, color));
    }
  }
}

TEST_CASE("the three formats hold the same pixels, mirrored or not", "[data][images]") {
  for (const char* name : {"baseline_420.jpg", "rgb.png"}) {
    const auto file = load(name);
    for (const auto crop : {Crop::center, Crop::random_resized}) {
      for (const int64_t channels : {1, 3}) {
        const auto get = [&](ImageFormat format, double flip) {
          ImageOptions options{.height = 11, .width = 13, .crop = crop, .flip = flip, .channels = channels};
          options.format = format;
          return ImageDecoder(options);
        };
        const auto planes = decode<float>(get(ImageFormat::float_contiguous, 0), file);
        const auto mirrored = decode<float>(get(ImageFormat::float_contiguous, 1), file);
        const auto last = decode<float>(get(ImageFormat::float_channels_last, 1), file);
        const auto bytes = decode<uint8_t>(get(ImageFormat::uint8_channels_last, 1), file);
        for (int64_t c = 0; c < channels; ++c) {
          for (int64_t y = 0; y < 11; ++y) {
            for (int64_t x = 0; x < 13; ++x) {
              const float value = planes[static_cast<std::size_t>((c * 11 + y) * 13 + x)];
              const int64_t there = 12 - x, pixel = (y * 13 + there) * channels + c;
              REQUIRE(mirrored[static_cast<std::size_t>((c * 11 + y) * 13 + there)] == value);
              REQUIRE(last[static_cast<std::size_t>(pixel)] == value);
              REQUIRE(bytes[static_cast<std::size_t>(pixel)] == std::lround(value * 255));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("values are torch's to the bit where pixels stay as they are", "[data][images]") {
  const ImageDecoder decoder(
      {.height = 6, .width = 7, .crop = Crop::center, .mean = {0.485, 0.456, 0.406}, .std = {0.229, 0.224, 0.225}});
  const auto values = decode<float>(decoder, load("rgb.png"));
  const auto expected = support::oracle("images.txt").at("normalized_center_6_7");
  REQUIRE(values.size() == expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) REQUIRE(values[i] == static_cast<float>(expected[i]));
}

TEST_CASE("an image decoded at a smaller scale is close to the whole one resized", "[data][images]") {
  SampleRandom random(2, 2);
  const auto file = encode(400, 300, TJSAMP_420, false, random);
  ImageOptions options{.height = 40, .width = 50, .crop = Crop::random_resized, .scale = {0.5, 1}};
  const ImageDecoder fast(options);
  options.scaled_decode = false;
  const ImageDecoder exact(options);
  for (int64_t position = 0; position < 8; ++position) {
    const auto a = decode<float>(fast, file, SampleAt(0, 0, 0, position));
    const auto b = decode<float>(exact, file, SampleAt(0, 0, 0, position));
    double sum = 0, most = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      sum += std::abs(a[i] - b[i]);
      most = std::max<double>(most, std::abs(a[i] - b[i]));
    }
    REQUIRE(a != b);
    REQUIRE(sum / static_cast<double>(a.size()) < 0.02);
    REQUIRE(most < 0.12);
  }
}

TEST_CASE("augmentation is a function of seed, epoch and position alone", "[data][images]") {
  const auto file = load("baseline_420.jpg");
  const ImageDecoder decoder({.height = 12, .width = 12, .crop = Crop::random_resized, .flip = 0.5});
  const auto at = [](int64_t index, uint64_t seed, int64_t epoch, int64_t position) {
    return SampleAt(index, seed, epoch, position);
  };
  const auto here = decode<float>(decoder, file, at(0, 5, 1, 7));
  REQUIRE(decode<float>(decoder, file, at(99, 5, 1, 7)) == here);
  REQUIRE(decode<float>(decoder, file, at(0, 6, 1, 7)) != here);
  REQUIRE(decode<float>(decoder, file, at(0, 5, 2, 7)) != here);
  REQUIRE(decode<float>(decoder, file, at(0, 5, 1, 8)) != here);
  std::vector<std::vector<float>> there(8);
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      // What a thread decoded before leaves nothing behind.
      for (int64_t k = 0; k < 10; ++k) decode<float>(decoder, file, at(0, 5, t, k));
      there[static_cast<std::size_t>(t)] = decode<float>(decoder, file, at(0, 5, 1, 7));
    });
  }
  for (auto& thread : threads) thread.join();
  for (std::size_t t = 0; t < 4; ++t) REQUIRE(there[t] == here);
}

TEST_CASE("labels come from text, from JSON or from the record", "[data][images]") {
  const auto image = load("rgb.png");
  const ImageOptions small{.height = 4, .width = 4, .image = "png;jpg"};
  auto with = [&](auto change) {
    auto options = small;
    change(options);
    return options;
  };
  const auto record = [&](const char* kind, const std::string& text) {
    static Bytes bytes;
    bytes.assign(text.begin(), text.end());
    return images::record_of(image, bytes, kind);
  };
  REQUIRE(label_of(small, record("cls", "12")) == 12);
  REQUIRE(label_of(small, record("cls", " -100\r\n")) == -100);
  const auto json = with([](ImageOptions& o) { o.label = "json"; });
  REQUIRE(label_of(json, record("json", R"({"a": 1, "label": 7})")) == 7);
  const auto pointer = with([](ImageOptions& o) { o.label = "cls;json", o.label_field = "/a/1/b"; });
  REQUIRE(label_of(pointer, record("json", R"({"a": [0, {"b": 3}]})")) == 3);
  auto plain = images::record_of(image, {}, "txt");
  plain.label = 4;
  REQUIRE(label_of(small, plain) == 4);
  plain.parts[1] = {"cls", {}};  // an empty part is not passed over
  REQUIRE_THROWS_AS(label_of(small, plain), saturate::DataError);

  const auto refused = [&](const ImageOptions& options, const Record& bad, const std::string& words) {
    REQUIRE_THROWS_MATCHES(label_of(options, bad), saturate::DataError, MessageMatches(ContainsSubstring(words)));
  };
  for (const char* text : {"", "x", "1.5", "1 2", "99999999999999999999", "0x3"})
    refused(small, record("cls", text), "a label is one integer");
  refused(json, record("json", "{"), "not JSON");
  refused(json, record("json", "[1]"), "has no 'label'");
  refused(json, record("json", R"({"label": 1.5})"), "no integer");
  refused(json, record("json", R"({"label": 18446744073709551615})"), "no integer");
  refused(pointer, record("json", R"({"a": 3})"), "has no '/a/1/b'");
  refused(small, record("txt", "1"), "the sample has jpg, txt, and ImageOptions::label is 'cls'");
  refused(with([](ImageOptions& o) { o.image = "webp"; }), record("cls", "1"), "no image: the sample has jpg, cls");
  const auto ten = with([](ImageOptions& o) { o.num_classes = 10; });
  REQUIRE(label_of(ten, record("cls", "9")) == 9);
  refused(ten, record("cls", "10"), "label 10 is not in 0..9");
  refused(ten, record("cls", "-1"), "label -1 is not in 0..9");
}

TEST_CASE("image options that cannot work are refused", "[data][images]") {
  const auto refused = [](const std::string& words, auto change) {
    ImageOptions options;
    change(options);
    REQUIRE_THROWS_MATCHES(ImageDecoder(options), saturate::ConfigError, MessageMatches(ContainsSubstring(words)));
  };
  refused("height is 0", [](auto& o) { o.height = 0; });
  refused("width is -1", [](auto& o) { o.width = -1; });
  refused("resize is -2", [](auto& o) { o.resize = -2; });
  refused("resize is 100, and no image", [](auto& o) { o.crop = Crop::center, o.resize = 100; });
  refused("scale goes", [](auto& o) { o.scale = {0, 1}; });
  refused("scale goes", [](auto& o) { o.scale = {0.5, 0.4}; });
  refused("scale goes", [](auto& o) { o.scale = {0.5, 1.1}; });
  refused("ratio goes", [](auto& o) { o.ratio = {2, 1}; });
  refused("ratio goes", [](auto& o) { o.ratio = {std::nan(""), 1}; });
  refused("flip is", [](auto& o) { o.flip = 1.5; });
  refused("channels is 2", [](auto& o) { o.channels = 2; });
  refused("mean has 2 values for 3 channels", [](auto& o) { o.mean = {1, 2}; });
  refused("std has 3 values for 1 channels", [](auto& o) { o.channels = 1, o.std = {1, 2, 3}; });
  refused("std is 0", [](auto& o) { o.std = {1, 0, 1}; });
  refused("std is not finite", [](auto& o) { o.std = {1, INFINITY, 1}; });
  refused("mean is not finite", [](auto& o) { o.mean = {std::nan("")}; });
  refused("names no part", [](auto& o) { o.image = ";"; });
  refused("starts with a dot", [](auto& o) { o.image = ".jpg"; });
  refused("label_field", [](auto& o) { o.label = "json", o.label_field = ""; });
  refused("no JSON pointer", [](auto& o) { o.label = "json", o.label_field = "/a~2"; });
  refused("num_classes is 0", [](auto& o) { o.num_classes = 0; });
}

TEST_CASE("image options without effect are warned of", "[data][images]") {
  std::vector<std::string> messages;
  saturate::log::set_sink([](saturate::log::Level, std::string_view message,
                             void* to) { static_cast<std::vector<std::string>*>(to)->emplace_back(message); },
                          &messages);
  ImageDecoder({.crop = Crop::none, .resize = 256});
  ImageDecoder({.crop = Crop::center, .scale = {0.5, 1}});
  ImageDecoder({.mean = {0.5}, .format = ImageFormat::uint8_channels_last});
  ImageDecoder({.crop = Crop::center, .resize = 256, .mean = {0.5}});
  saturate::log::set_sink(nullptr, nullptr);
  REQUIRE(messages.size() == 3);
  REQUIRE_THAT(messages[0], ContainsSubstring("resize has no effect"));
  REQUIRE_THAT(messages[1], ContainsSubstring("scale and ratio have no effect"));
  REQUIRE_THAT(messages[2], ContainsSubstring("mean and std have no effect"));
}
