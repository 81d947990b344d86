// SPDX-License-Identifier: Apache-2.0
// Laws 4 and 5 over every kind of source and sampler: what a step reads, augmentation included, is a function of seed,
// epoch and position; not of workers or ranks, nor of a stop and a start in between.
#include "saturate/data/idx_source.hpp"
#include "saturate/data/image_folder.hpp"
#include "saturate/data/image_source.hpp"
#include "saturate/data/mixture_source.hpp"
#include "saturate/data/prefetch_loader.hpp"
#include "saturate/data/shard_writer.hpp"
#include "saturate/data/tar_shards.hpp"
#include "saturate/data/tar_stream.hpp"
#include "saturate/data/tensor_source.hpp"
#include "saturate/data/token_source.hpp"
#include "saturate/data/weighted_sampler.hpp"
#include "saturate/error.hpp"

#include <torch/torch.h>

#include <png.h>
#include <sys/stat.h>
#include <unistd.h>
#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <utility>

using namespace saturate::data;

namespace {

constexpr int64_t samples = 101, global_batch = 12;
constexpr int64_t side = 24;

/// A 24 x 24 PNG that no other number has.
std::vector<std::byte> png(int64_t number) {
  std::vector<uint8_t> pixels(3 * side * side);
  for (std::size_t p = 0; p < pixels.size(); ++p)
    pixels[p] = static_cast<uint8_t>(p * 7 + static_cast<std::size_t>(number) * 31 + p * p % 13);
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = image.height = side;
  image.format = PNG_FORMAT_RGB;
  png_alloc_size_t size = 0;
  REQUIRE(png_image_write_to_memory(&image, nullptr, &size, 0, pixels.data(), 0, nullptr) != 0);
  std::vector<std::byte> file(size);
  REQUIRE(png_image_write_to_memory(&image, file.data(), &size, 0, pixels.data(), 0, nullptr) != 0);
  file.resize(size);
  return file;
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// The same images as shards and as a folder per class, and a file of tokens; made once.
const std::string& folder() {
  static const std::string path = [] {
    std::string name = "/tmp/saturate-sources-XXXXXX";
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    for (const char* part : {"/images", "/images/0", "/images/1", "/images/2"}) ::mkdir((name + part).c_str(), 0700);
    ShardWriter writer(name + "/train-%03d.tar", {.max_samples = 30});
    for (int64_t i = 0; i < samples; ++i) {
      const auto image = png(i);
      const std::string label = std::to_string(i % 3), number = std::to_string(1000 + i);
      writer.add(number, {{"png", image}, {"cls", bytes_of(label)}});
      std::ofstream(name + "/images/" + label + "/" + number + ".png", std::ios::binary)
          .write(reinterpret_cast<const char*>(image.data()), static_cast<std::streamsize>(image.size()));
    }
    writer.finish();
    std::vector<uint16_t> tokens(samples * 16 + 1);
    for (std::size_t t = 0; t < tokens.size(); ++t) tokens[t] = static_cast<uint16_t>(t * 2654435761u >> 7);
    std::ofstream(name + "/tokens.bin", std::ios::binary)
        .write(reinterpret_cast<const char*>(tokens.data()), static_cast<std::streamsize>(2 * tokens.size()));
    return name;
  }();
  return path;
}

/// A copy of the data that a test may damage.
std::string own_folder() {
  std::string name = "/tmp/saturate-damaged-XXXXXX";
  REQUIRE(::mkdtemp(name.data()) != nullptr);
  REQUIRE(std::system(("cp -r " + folder() + "/. " + name).c_str()) == 0);
  return name;
}

/// What a loop over the source throws once `damage` was done after its first batch; "" when it comes to its end.
template <class S>
std::string error_of(const S& source, int64_t workers, const std::function<void()>& damage) {
  PrefetchLoader<S> loader(source, {.batch_size = 4, .workers = workers, .prefetch = 1});
  try {
    bool done = false;
    for ([[maybe_unused]] auto& batch : loader) {
      if (!std::exchange(done, true)) damage();
    }
  } catch (const saturate::DataError& error) {
    return error.what();
  }
  return {};
}

const ImageOptions& augmented() {
  static const ImageOptions options{
      .height = 16, .width = 16, .crop = Crop::random_resized, .flip = 0.5, .mean = {0.5}, .std = {0.25}};
  return options;
}

TarShards shards() { return TarShards(folder() + "/train-{000..003}.tar"); }
TensorSource<2> tensors() {
  return TensorSource(torch::arange(samples * 5).view({samples, 5}).to(at::kFloat), torch::arange(samples));
}

LoaderOptions options_for(int64_t workers, int64_t rank, int64_t ranks, std::shared_ptr<const Sampler> sampler) {
  LoaderOptions options{.batch_size = global_batch / ranks,
                        .shuffle = sampler == nullptr,
                        .seed = 11,
                        .workers = workers,
                        .prefetch = 3,
                        .sampler = std::move(sampler)};
  options.rank = rank;
  options.ranks = ranks;
  options.uneven = Uneven::allow;
  return options;
}

/// The fields of the global sequence of one epoch, or of what is left of it: all ranks' steps, put together again.
template <class S>
std::vector<at::Tensor> sequence(const S& source, int64_t workers, int64_t ranks,
                                 const std::shared_ptr<const Sampler>& sampler, int64_t epoch, int64_t first_step = 0) {
  std::vector<std::vector<Batch<S::fields>>> steps;  // of each rank
  for (int64_t rank = 0; rank < ranks; ++rank) {
    PrefetchLoader<S> loader(source, options_for(workers, rank, ranks, sampler));
    loader.set_epoch(epoch, first_step);
    auto& mine = steps.emplace_back();
    for (auto& batch : loader) {
      auto& copy = mine.emplace_back();
      for (std::size_t f = 0; f < S::fields; ++f) copy.fields[f] = batch.fields[f].clone();
    }
  }
  std::vector<at::Tensor> result;
  for (std::size_t f = 0; f < S::fields; ++f) {
    std::vector<at::Tensor> parts;
    for (std::size_t step = 0; step < steps.front().size(); ++step) {
      for (const auto& rank : steps) {
        if (step < rank.size()) parts.push_back(rank[step].fields[f]);
      }
    }
    result.push_back(torch::cat(parts));
  }
  return result;
}

bool equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b, int64_t first = 0) {
  for (std::size_t f = 0; f < a.size(); ++f) {
    if (!a[f].slice(0, first).equal(b[f])) return false;
  }
  return a.size() == b.size();
}

/// A source whose augmentation is drawn from a generator of its own, as a worker's would be: the laws must not hold.
struct Drawn {
  static constexpr std::size_t fields = 2;
  std::shared_ptr<std::atomic<int64_t>> draws = std::make_shared<std::atomic<int64_t>>(0);
  int64_t size() const { return samples; }
  std::array<FieldLayout, fields> layout() const { return {FieldLayout{at::kLong, {}}, FieldLayout{at::kLong, {}}}; }
  void read(int64_t index, std::array<std::byte*, fields> out) const {
    const int64_t draw = draws->fetch_add(1);
    std::memcpy(out[0], &draw, sizeof draw);
    std::memcpy(out[1], &index, sizeof index);
  }
};

/// The check of the laws. @return how many of the circumstances change what is read.
template <class S>
int violations(const S& source, const std::shared_ptr<const Sampler>& sampler) {
  int count = 0;
  for (const int64_t epoch : {0, 3}) {
    const auto expected = sequence(source, 0, 1, sampler, epoch);
    for (const int64_t ranks : {1, 2, 3}) {
      for (const int64_t workers : {1, 2, 4})
        count += !equal(expected, sequence(source, workers, ranks, sampler, epoch));
      count += !equal(expected, sequence(source, 2, ranks, sampler, epoch, 5), 5 * global_batch);  // goes on there
    }
  }
  return count;
}

template <class S>
void check_laws(const S& source) {
  REQUIRE(violations(source, nullptr) == 0);
  REQUIRE(violations(source, std::make_shared<SequentialSampler>()) == 0);
  std::vector<double> weights(static_cast<std::size_t>(source.size()));
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<double>(1 + i % 5);
  REQUIRE(violations(source, std::make_shared<WeightedSampler>(weights, WeightedOptions{.num_samples = 77})) == 0);
}

}  // namespace

TEST_CASE("laws 4 and 5: tensors", "[law][data]") { check_laws(tensors()); }

TEST_CASE("laws 4 and 5: tokens", "[law][data]") {
  check_laws(TokenSource(folder() + "/tokens.bin", {.sequence_length = 16}));
}

TEST_CASE("laws 4 and 5: tar shards of images, augmented", "[law][data]") {
  const ImageSource source(shards(), augmented());
  check_laws(source);
  REQUIRE(violations(source, std::make_shared<ShardShuffledSampler>(source.shard_sizes(), 20)) == 0);
  const auto first = sequence(source, 0, 1, std::make_shared<SequentialSampler>(), 0);
  const auto second = sequence(source, 0, 1, std::make_shared<SequentialSampler>(), 1);
  REQUIRE(first[1].equal(second[1]));
  REQUIRE_FALSE(first[0].equal(second[0]));  // the same images, in other crops
}

TEST_CASE("laws 4 and 5: a folder of images, augmented", "[law][data]") {
  check_laws(ImageSource(ImageFolder(folder() + "/images"), augmented()));
}

TEST_CASE("laws 4 and 5: a mixture of sources", "[law][data]") {
  const ImageSource images(shards(), augmented());
  const ImageSource more(ImageFolder(folder() + "/images"), augmented());
  const MixtureSource mixture({.weights = {3, 1}, .stop = MixtureStop::all_exhausted()}, images, more);
  REQUIRE(violations(mixture, mixture.sampler()) == 0);
  const MixtureSource rows({.weights = {1, 2}}, tensors(), tensors());
  REQUIRE(violations(rows, rows.sampler()) == 0);
}

TEST_CASE("law 4: a stream of tar shards gives one order for any number of workers", "[law][data]") {
  const ImageStream stream(TarStream(folder() + "/train-{000..003}.tar", {.shuffle_shards = true, .buffer = 16}),
                           augmented());
  for (const int64_t ranks : {1, 2, 3}) {
    int64_t total = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      std::vector<at::Tensor> expected;
      for (const int64_t workers : {0, 1, 2, 4}) {
        PrefetchLoader<ImageStream> loader(
            stream, {.batch_size = 8, .seed = 2, .workers = workers, .rank = rank, .ranks = ranks});
        loader.set_epoch(1);
        std::vector<at::Tensor> images, labels;
        for (auto& batch : loader) {
          images.push_back(batch.data().clone());
          labels.push_back(batch.target().clone());
        }
        const std::vector<at::Tensor> seen{torch::cat(images), torch::cat(labels)};
        if (expected.empty()) expected = seen;
        REQUIRE(equal(expected, seen));
      }
      total += expected[0].size(0);
    }
    REQUIRE(total == samples);
  }
}

TEST_CASE("laws 4 and 5: randomness that belongs to the reader is seen", "[law][data]") {
  REQUIRE(violations(Drawn{}, nullptr) > 0);
}

TEST_CASE("law 9: files that vanish, shrink or change in the middle of an epoch reach the loop by name",
          "[law][data]") {
  for (const int64_t workers : {0, 1, 4}) {
    const std::string place = own_folder();
    const auto said = [](const std::string& error, const std::string& words) {
      return error.find(words) != std::string::npos;
    };
    const std::string gone = place + "/images/2/1098.png";
    REQUIRE(said(error_of(ImageSource(ImageFolder(place + "/images"), augmented()), workers,
                          [&] { REQUIRE(::unlink(gone.c_str()) == 0); }),
                 gone));
    const std::string shard = place + "/train-002.tar";
    REQUIRE(said(error_of(ImageSource(TarShards(place + "/train-{000..003}.tar"), augmented()), workers,
                          [&] { REQUIRE(::truncate(shard.c_str(), 20000) == 0); }),
                 shard));
    const std::string tokens = place + "/tokens.bin";
    REQUIRE(said(error_of(TokenSource(tokens, {.sequence_length = 16}), workers,
                          [&] { REQUIRE(::truncate(tokens.c_str(), 2000) == 0); }),
                 tokens));
    // The stream: every complete sample of the damaged shard, then its error.
    const std::string error =
        error_of(ImageStream(TarStream(place + "/train-{000..003}.tar"), augmented()), workers, [] {});
    CAPTURE(error);
    REQUIRE(said(error, shard));
    REQUIRE(std::system(("rm -r " + place).c_str()) == 0);
  }
}
