// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/image_source.hpp"

#include "saturate/data/crop_flip_normalize.hpp"
#include "saturate/data/prefetch_loader.hpp"
#include "saturate/data/stage.hpp"
#include "saturate/error.hpp"
#include "unit/data/images.hpp"

#include <torch/torch.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

using namespace saturate::data;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;
using images::load;
using images::Memory;

namespace {

std::vector<images::Bytes> files(std::initializer_list<const char*> names) {
  std::vector<images::Bytes> result;
  for (const char* name : names) result.push_back(load(name));
  return result;
}

const ImageOptions augmented{.height = 9, .width = 8, .crop = Crop::random_resized, .flip = 0.5};

/// Hands out the records of a Memory one after the other.
class OneByOne : public RecordStreamSource {
 public:
  explicit OneByOne(Memory records) : records_(std::make_shared<const Memory>(std::move(records))) {}
  std::unique_ptr<RecordStream> open(const StreamPart& part) const override {
    struct Pass : RecordStream {
      std::shared_ptr<const Memory> records;
      int64_t next_one = 0;
      bool next(Record& out, std::string& where) override {
        if (next_one == records->size()) return false;
        where = records->describe(next_one);
        records->read(next_one++, out);
        return true;
      }
    };
    auto pass = std::make_unique<Pass>();
    pass->records = records_;
    pass->next_one = part.rank;
    return pass;
  }

 private:
  std::shared_ptr<const Memory> records_;
};

}  // namespace

TEST_CASE("an image source says what its samples are", "[data][images]") {
  const Memory records(files({"rgb.png", "grey.jpg", "cmyk.jpg"}));
  const ImageSource source(records, {.height = 4, .width = 5});
  REQUIRE(source.size() == 3);
  const auto [image, label] = source.layout();
  REQUIRE((image.dtype == at::kFloat && image.shape == std::vector<int64_t>{3, 4, 5}));
  REQUIRE(image.memory_format == at::MemoryFormat::Contiguous);
  REQUIRE((label.dtype == at::kLong && label.shape.empty()));
  const ImageSource bytes(records,
                          {.height = 4, .width = 5, .channels = 1, .format = ImageFormat::uint8_channels_last});
  REQUIRE(bytes.layout()[0].dtype == at::kByte);
  REQUIRE(bytes.layout()[0].shape == std::vector<int64_t>{1, 4, 5});
  REQUIRE(bytes.layout()[0].memory_format == at::MemoryFormat::ChannelsLast);
  REQUIRE_THROWS_AS(ImageSource(std::shared_ptr<const RecordSource>(), augmented), saturate::ConfigError);
  REQUIRE_THROWS_AS(ImageStream(std::shared_ptr<const RecordStreamSource>(), augmented), saturate::ConfigError);
}

TEST_CASE("a copy of an image source shares its records", "[data][images]") {
  const auto records = std::make_shared<const Memory>(files({"rgb.png"}));
  const ImageSource source(records, augmented);
  const auto uses = records.use_count();
  const ImageSource copy = source;
  REQUIRE(&copy.records() == records.get());
  REQUIRE(records.use_count() == uses + 1);
}

TEST_CASE("what an image source throws names the sample", "[data][images]") {
  const ImageSource source(Memory(files({"rgb.png", "truncated.jpg"})), augmented);
  std::vector<std::byte> image(9 * 8 * 3 * 4), label(8);
  REQUIRE_NOTHROW(source.read(0, {image.data(), label.data()}));
  REQUIRE_THROWS_MATCHES(source.read(1, {image.data(), label.data()}), saturate::DataError,
                         MessageMatches(ContainsSubstring("memory, sample 1: JPEG: ")));
}

TEST_CASE("decoding counts as decoding", "[data][images]") {
  const ImageSource source(Memory(files({"baseline_420.jpg"})), augmented);
  std::vector<std::byte> image(9 * 8 * 3 * 4), label(8);
  const auto before = saturate::data::detail::stage_totals().nanoseconds;
  source.read(0, {image.data(), label.data()});
  const auto after = saturate::data::detail::stage_totals().nanoseconds;
  REQUIRE(after[static_cast<std::size_t>(Stage::decode)] > before[static_cast<std::size_t>(Stage::decode)]);
  REQUIRE(after[static_cast<std::size_t>(Stage::read)] == before[static_cast<std::size_t>(Stage::read)]);
}

TEST_CASE("batches of images are the same for any number of workers, and change with the epoch", "[data][images]") {
  std::vector<images::Bytes> many;
  for (int i = 0; i < 40; ++i)
    many.push_back(load(i % 3 == 0 ? "rgb.png" : i % 3 == 1 ? "baseline_420.jpg" : "cmyk.jpg"));
  const ImageSource source(std::make_shared<const Memory>(many), augmented);
  std::vector<at::Tensor> first;
  for (const int64_t workers : {0, 1, 3}) {
    PrefetchLoader loader(source, {.batch_size = 7, .shuffle = true, .seed = 3, .workers = workers});
    std::vector<at::Tensor> all;
    for (int epoch = 0; epoch < 2; ++epoch) {
      std::vector<at::Tensor> data, labels;
      for (auto& batch : loader) {
        data.push_back(batch.data().clone());
        labels.push_back(batch.target().clone());
      }
      all.push_back(at::cat(data));
      all.push_back(at::cat(labels));
      REQUIRE(std::get<0>(all.back().sort()).equal(torch::arange(40)));
    }
    REQUIRE_FALSE(all[0].equal(all[2]));
    if (first.empty()) first = all;
    for (std::size_t i = 0; i < all.size(); ++i) REQUIRE(all[i].equal(first[i]));
  }
}

TEST_CASE("cropped and normalized after the copy or while decoding, a batch is the same", "[data][images]") {
  std::vector<images::Bytes> many(30, load("baseline_420.jpg"));
  const auto records = std::make_shared<const Memory>(many);
  const ImageSource floats(records, {.height = 20, .width = 30, .crop = Crop::random, .flip = 0.5, .mean = {0.4}});
  const ImageSource bytes(
      records, {.height = 35, .width = 45, .crop = Crop::center, .format = ImageFormat::uint8_channels_last});
  const CropFlipNormalize finish({.height = 20, .width = 30, .flip = 0.5, .mean = {0.4}});
  PrefetchLoader expected(floats, {.batch_size = 8, .shuffle = true, .workers = 1});
  PrefetchLoader loader(bytes, {.batch_size = 8, .shuffle = true, .workers = 2, .transform = finish});
  std::vector<at::Tensor> images, labels;
  for (auto& batch : expected) {
    images.push_back(batch.data().clone());
    labels.push_back(batch.target().clone());
  }
  std::size_t k = 0;
  for (auto& batch : loader) {
    REQUIRE(batch.data().equal(images.at(k)));
    REQUIRE(batch.target().equal(labels.at(k)));
    REQUIRE(batch.data().is_contiguous(at::MemoryFormat::ChannelsLast));
    ++k;
  }
  REQUIRE(k == images.size());
}

TEST_CASE("a stream of records gives the samples that a source of them gives", "[data][images]") {
  const Memory records(files({"rgb.png", "grey.jpg", "truncated.jpg", "cmyk.jpg"}));
  const ImageSource source(records, augmented);
  const ImageStream stream(OneByOne(records), augmented);
  REQUIRE(stream.layout()[0].shape == source.layout()[0].shape);
  const auto pass = stream.open({});
  Record record;
  std::string where;
  int64_t position = 0;
  for (; pass->next(record, where); ++position) {
    std::vector<std::byte> image(9 * 8 * 3 * 4), other(image.size());
    int64_t label = -1;
    const SampleAt at(position, 1, 2, position);
    const auto read = [&] { stream.read(record, where, at, {image.data(), reinterpret_cast<std::byte*>(&label)}); };
    if (position == 2) {
      REQUIRE_THROWS_MATCHES(read(), saturate::DataError, MessageMatches(ContainsSubstring("memory, sample 2: JPEG")));
      continue;
    }
    read();
    REQUIRE(label == position);
    source.read(at, {other.data(), reinterpret_cast<std::byte*>(&label)});
    REQUIRE((image == other));
  }
  REQUIRE(position == 4);
}
