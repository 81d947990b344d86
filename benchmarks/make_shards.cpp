// SPDX-License-Identifier: Apache-2.0
// Packs an image folder or a pair of idx files into tar shards, with their indexes.
//
//   make_shards shards/train-%06d.tar --folder imagenet/train --shuffle 1 --max-megabytes 256
//   make_shards shards/fashion-%06d.tar --images train-images.gz --labels train-labels.gz --resize 64 --quality 90
#include "saturate/data/idx_source.hpp"
#include "saturate/data/image_folder.hpp"
#include "saturate/data/sampler.hpp"
#include "saturate/data/shard_writer.hpp"
#include "saturate/data/tar_shards.hpp"
#include "saturate/error.hpp"

#include <png.h>
#include <turbojpeg.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace {

namespace st = saturate;
using st::data::Record;
using Bytes = std::vector<std::byte>;

struct Arguments {
  std::string out, folder, images, labels, format = "jpeg";
  int quality = 90;
  int64_t resize = 0, samples_per_shard = 0, max_megabytes = 512;
  std::optional<uint64_t> shuffle;
  bool overwrite = false, no_index = false;
};

std::span<const std::byte> as_bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

struct GrayImage {
  int64_t width = 0, height = 0;
  std::vector<uint8_t> pixels;
};

// Bilinear, the centres of the corner pixels' areas aligned.
GrayImage resized(const GrayImage& image, int64_t side) {
  GrayImage result{side, side, std::vector<uint8_t>(static_cast<std::size_t>(side * side))};
  const auto place = [side](int64_t i, int64_t extent) {
    const double at = (static_cast<double>(i) + 0.5) * static_cast<double>(extent) / static_cast<double>(side) - 0.5;
    return std::clamp(at, 0.0, static_cast<double>(extent - 1));
  };
  for (int64_t y = 0; y < side; ++y) {
    const double v = place(y, image.height);
    const auto top = static_cast<int64_t>(v), bottom = std::min(top + 1, image.height - 1);
    for (int64_t x = 0; x < side; ++x) {
      const double u = place(x, image.width);
      const auto left = static_cast<int64_t>(u), right = std::min(left + 1, image.width - 1);
      const auto at = [&](int64_t row, int64_t column) {
        return static_cast<double>(image.pixels[static_cast<std::size_t>(row * image.width + column)]);
      };
      const double down = v - static_cast<double>(top), across = u - static_cast<double>(left);
      const double above = at(top, left) * (1 - across) + at(top, right) * across;
      const double below = at(bottom, left) * (1 - across) + at(bottom, right) * across;
      result.pixels[static_cast<std::size_t>(y * side + x)] =
          static_cast<uint8_t>(std::lround(above * (1 - down) + below * down));
    }
  }
  return result;
}

Bytes jpeg(const GrayImage& image, int quality) {
  const std::unique_ptr<void, int (*)(tjhandle)> encoder(tjInitCompress(), &tjDestroy);
  unsigned char* out = nullptr;
  unsigned long size = 0;
  const int result = tjCompress2(encoder.get(), image.pixels.data(), static_cast<int>(image.width), 0,
                                 static_cast<int>(image.height), TJPF_GRAY, &out, &size, TJSAMP_GRAY, quality, 0);
  const std::unique_ptr<unsigned char, void (*)(unsigned char*)> owner(out, &tjFree);
  if (result != 0) throw st::Error(std::string("cannot encode a JPEG: ") + tjGetErrorStr2(encoder.get()));
  const auto* const begin = reinterpret_cast<const std::byte*>(out);
  return {begin, begin + size};
}

Bytes png(const GrayImage& image) {
  png_image header{};
  header.version = PNG_IMAGE_VERSION;
  header.width = static_cast<png_uint_32>(image.width);
  header.height = static_cast<png_uint_32>(image.height);
  header.format = PNG_FORMAT_GRAY;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(header);
  Bytes out(size);
  if (png_image_write_to_memory(&header, out.data(), &size, 0, image.pixels.data(), 0, nullptr) == 0) {
    throw st::Error(std::string("cannot encode a PNG: ") + header.message);
  }
  out.resize(size);
  return out;
}

// FNV-1a over all that is written, and again over all that is read back.
struct Sum {
  uint64_t value = 0xcbf29ce484222325;
  void add(std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) value = (value ^ static_cast<uint64_t>(byte)) * 0x100000001b3;
  }
};

class Packer {
 public:
  explicit Packer(const Arguments& arguments)
      : arguments_(arguments),
        writer_(arguments.out, {.max_samples = arguments.samples_per_shard,
                                .max_bytes = arguments.max_megabytes * 1'000'000,
                                .overwrite = arguments.overwrite,
                                .write_index = !arguments.no_index}) {}

  // The sample's number in its source is its key: names of files may repeat, and may hold dots.
  void add(int64_t number, std::string_view extension, std::span<const std::byte> image, int64_t label) {
    char key[24];
    std::snprintf(key, sizeof key, "%08lld", static_cast<long long>(number));
    const std::string text = std::to_string(label);
    writer_.add(key, {{extension, image}, {"cls", as_bytes(text)}});
    sum_.add(as_bytes(key));
    sum_.add(image);
    sum_.add(as_bytes(text));
  }

  void finish() {
    const auto paths = writer_.finish();
    const st::data::TarShards shards(paths, {.keep_index = !arguments_.no_index});
    Sum sum;
    Record record;
    for (int64_t i = 0; i < shards.size(); ++i) {
      shards.read(i, record);
      sum.add(as_bytes(shards.key(i)));
      for (const Record::Part& part : record.parts) sum.add(part.bytes);
    }
    if (shards.size() != writer_.samples() || sum.value != sum_.value) {
      throw st::DataError(paths.front() + ": the shards do not read back as they were written; is the disk sound?");
    }
    std::printf("%lld samples in %zu shard%s, %.1f MB, read back without a difference: %s", (long long)shards.size(),
                paths.size(), paths.size() == 1 ? "" : "s", static_cast<double>(writer_.bytes()) / 1e6,
                paths.front().c_str());
    if (paths.size() > 1) std::printf(" ... %s", paths.back().c_str());
    std::printf("\n");
  }

 private:
  const Arguments& arguments_;
  st::data::ShardWriter writer_;
  Sum sum_;
};

std::vector<int64_t> order(const Arguments& arguments, int64_t size) {
  return st::data::epoch_order(size, arguments.shuffle.has_value(), arguments.shuffle.value_or(0), 0);
}

// "train-%06d.tar" -> "train-classes.txt": a class a line, in the order of the labels.
void write_classes(const Arguments& arguments, const std::vector<std::string>& classes) {
  const std::string path = arguments.out.substr(0, arguments.out.rfind('%')) + "classes.txt";
  std::ofstream file(path);
  for (const std::string& name : classes) file << name << "\n";
  if (!file.flush()) throw st::Error("cannot write " + path);
  std::printf("%zu classes: %s\n", classes.size(), path.c_str());
}

void pack_folder(const Arguments& arguments) {
  const st::data::ImageFolder source(arguments.folder);
  Packer packer(arguments);
  Record record;
  for (const int64_t i : order(arguments, source.size())) {
    source.read(i, record);
    packer.add(i, record.parts[0].extension, record.parts[0].bytes, *record.label);
  }
  packer.finish();
  write_classes(arguments, source.classes());
}

void pack_idx(const Arguments& arguments) {
  const st::data::IdxSource source(arguments.images, arguments.labels);
  Packer packer(arguments);
  const auto* const pixels = source.images().const_data_ptr<uint8_t>();
  const auto* const labels = source.labels().const_data_ptr<int64_t>();
  const int64_t height = source.images().size(1), width = source.images().size(2);
  const bool as_png = arguments.format == "png";
  for (const int64_t i : order(arguments, source.size())) {
    const uint8_t* const begin = pixels + i * height * width;
    GrayImage image{width, height, {begin, begin + height * width}};
    if (arguments.resize > 0) image = resized(image, arguments.resize);
    packer.add(i, as_png ? "png" : "jpg", as_png ? png(image) : jpeg(image, arguments.quality), labels[i]);
  }
  packer.finish();
}

void add_options(CLI::App& program, Arguments& arguments) {
  program.add_option("out", arguments.out, "the shards' paths, with %06d for the number: train-%06d.tar")->required();
  auto* const folder = program.add_option("--folder", arguments.folder, "image folder, a folder per class");
  auto* const images = program.add_option("--images", arguments.images, "idx file of images, plain or gzip");
  auto* const labels = program.add_option("--labels", arguments.labels, "idx file of labels");
  folder->excludes(images)->excludes(labels);
  images->needs(labels);
  labels->needs(images);
  program.add_option("--format", arguments.format, "of idx images; those of a folder stay as they are")
      ->check(CLI::IsMember({"jpeg", "png"}))
      ->needs(images)
      ->capture_default_str();
  program.add_option("--quality", arguments.quality, "of JPEGs made from idx images")
      ->check(CLI::Range(1, 100))
      ->needs(images)
      ->capture_default_str();
  program.add_option("--resize", arguments.resize, "idx images become squares of this side, bilinear")
      ->check(CLI::Range(1, 8192))
      ->needs(images);
  program.add_option("--samples-per-shard", arguments.samples_per_shard, "at most (default: no bound)")
      ->check(CLI::PositiveNumber);
  program.add_option("--max-megabytes", arguments.max_megabytes, "of a shard (10^6 bytes)")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  program.add_option("--shuffle", arguments.shuffle, "a seed: the samples in random order");
  program.add_flag("--overwrite", arguments.overwrite, "replace the shards that are there");
  program.add_flag("--no-index", arguments.no_index, "no index files beside the shards");
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App program("Packs an image folder or a pair of idx files into tar shards, with their indexes.", "make_shards");
  add_options(program, arguments);
  CLI11_PARSE(program, argc, argv);
  try {
    if (arguments.folder.empty() && arguments.images.empty()) {
      throw st::ConfigError("name what to pack: --folder, or --images and --labels");
    }
    arguments.folder.empty() ? pack_idx(arguments) : pack_folder(arguments);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "make_shards: " << error.what() << "\n";
    return 1;
  }
}
