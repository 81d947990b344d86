// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/idx_source.hpp"

#include "gzip_file.hpp"
#include "saturate/data/tensor_source.hpp"
#include "saturate/error.hpp"
#include "saturate/log.hpp"

#include <ATen/ops/empty.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

namespace saturate::data {
namespace {

using detail::GzipFile;

constexpr uint32_t image_magic = 0x00000803;  // uint8, three dimensions
constexpr uint32_t label_magic = 0x00000801;  // uint8, one dimension

std::string hex(uint32_t value) {
  std::ostringstream text;
  text << "0x" << std::hex << value;
  return text.str();
}

uint32_t big_endian(const unsigned char* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | uint32_t{bytes[3]};
}

uint32_t read_number(GzipFile& file) {
  unsigned char bytes[4];
  if (file.read(bytes, sizeof bytes) != sizeof bytes) file.fail("the idx header is truncated");
  return big_endian(bytes);
}

// An idx file begins with two zero bytes, the type of its values and the number of its dimensions.
std::optional<at::ScalarType> dtype_of(uint32_t magic) {
  if (magic >> 16 != 0 || (magic & 0xff) == 0) return std::nullopt;
  switch (magic >> 8 & 0xff) {
    case 0x08: return at::kByte;
    case 0x09: return at::kChar;
    case 0x0b: return at::kShort;
    case 0x0c: return at::kInt;
    case 0x0d: return at::kFloat;
    case 0x0e: return at::kDouble;
    default: return std::nullopt;
  }
}

std::vector<int64_t> read_shape(GzipFile& file, uint32_t magic, std::size_t element_bytes) {
  std::vector<int64_t> shape(magic & 0xff);
  uint64_t bytes = element_bytes;
  bool too_large = false, empty = false;
  for (int64_t& extent : shape) {
    extent = read_number(file);
    empty = empty || extent == 0;
    too_large = too_large || __builtin_mul_overflow(bytes, static_cast<uint64_t>(extent), &bytes);
  }
  if (empty) file.fail("is empty: its header says that there is no data");
  // Checked before memory is asked for: a damaged header can promise any number.
  if (too_large || bytes > file.longest_content())
    file.fail("truncated: its header promises more data than the file can hold");
  return shape;
}

void swap_bytes(at::Tensor& values) {
  const auto width = static_cast<std::ptrdiff_t>(values.element_size());
  if (width == 1) return;
  auto* byte = static_cast<char*>(values.mutable_data_ptr());
  for (int64_t i = 0; i < values.numel(); ++i, byte += width) std::reverse(byte, byte + width);
}

/// `expected`: the only magic number that will do, or 0 for any idx file.
at::Tensor read_idx(const std::string& path, uint32_t expected, std::string_view what) {
  GzipFile file(path);
  const uint32_t magic = read_number(file);
  const auto dtype = dtype_of(magic);
  if (!dtype) file.fail("is no idx file: its magic number is " + hex(magic));
  if (expected != 0 && magic != expected) {
    file.fail("has the magic number " + hex(magic) + "; " + std::string(what) + " have " + hex(expected));
  }
  const auto shape = read_shape(file, magic, c10::elementSize(*dtype));
  at::Tensor values = at::empty(shape, *dtype);
  const auto got = static_cast<int64_t>(file.read(values.mutable_data_ptr(), values.nbytes()));
  if (got != static_cast<int64_t>(values.nbytes())) {
    file.fail("truncated: " + std::to_string(got) + " of " + std::to_string(values.nbytes()) +
              " bytes of data are there");
  }
  char extra;
  if (file.read(&extra, 1) != 0)
    file.fail("has trailing data after the " + std::to_string(got) + " bytes that its header announces");
  swap_bytes(values);
  return values;
}

void check_options(const IdxOptions& options) {
  if (!std::isfinite(options.mean))
    throw ConfigError("IdxOptions: mean is " + std::to_string(options.mean) + "; it must be finite");
  if (!(options.std > 0) || !std::isfinite(options.std)) {
    throw ConfigError("IdxOptions: std is " + std::to_string(options.std) +
                      "; pixels are divided by it, so it must be positive");
  }
  if (options.raw && (options.mean != 0 || options.std != 1)) {
    log::warn("IdxOptions: mean and std have no effect with raw pixels; pass them to normalize_u8");
  }
}

std::array<float, 256> value_table(const IdxOptions& options) {
  std::array<float, 256> values;
  const auto mean = static_cast<float>(options.mean), std = static_cast<float>(options.std);
  for (int pixel = 0; pixel < 256; ++pixel)
    values[static_cast<std::size_t>(pixel)] = (static_cast<float>(pixel) / 255.0f - mean) / std;
  return values;
}

}  // namespace

at::Tensor load_idx(const std::string& path) { return read_idx(path, 0, "idx files"); }

IdxSource::IdxSource(const std::string& images, const std::string& labels, IdxOptions options) : raw_(options.raw) {
  check_options(options);
  images_ = read_idx(images, image_magic, "images");
  labels_ = read_idx(labels, label_magic, "labels").to(at::kLong);
  if (images_.size(0) != labels_.size(0)) {
    throw DataError(labels + ": holds " + std::to_string(labels_.size(0)) + " labels, but " + images + " holds " +
                    std::to_string(images_.size(0)) + " images");
  }
  values_ = value_table(options);
}

IdxSource IdxSource::fashion_mnist(Split split, IdxOptions options, const std::string& folder) {
  const std::string prefix = folder + (split == Split::train ? "/train-" : "/t10k-");
  const std::string images = prefix + "images-idx3-ubyte.gz", labels = prefix + "labels-idx1-ubyte.gz";
  for (const std::string& path : {images, labels}) {
    if (::access(path.c_str(), F_OK) != 0) {
      throw DataError(path +
                      ": does not exist. Fashion-MNIST comes with `apt-get install dataset-fashion-mnist`; or pass "
                      "the folder that holds its four .gz files");
    }
  }
  return IdxSource(images, labels, options);
}

std::array<FieldLayout, IdxSource::fields> IdxSource::layout() const {
  return {FieldLayout{raw_ ? at::kByte : at::kFloat, {1, images_.size(1), images_.size(2)}},
          FieldLayout{at::kLong, {}}};
}

void IdxSource::gather(std::span<const int64_t> indices, std::array<std::byte*, fields> out) const {
  detail::check_indices(indices, size());
  const auto pixels = static_cast<std::size_t>(images_.size(1) * images_.size(2));
  const auto* image = images_.const_data_ptr<uint8_t>();
  const auto* label = labels_.const_data_ptr<int64_t>();
  auto* values = reinterpret_cast<float*>(out[0]);
  for (std::size_t k = 0; k < indices.size(); ++k) {
    const uint8_t* from = image + static_cast<std::size_t>(indices[k]) * pixels;
    if (k + 1 < indices.size()) __builtin_prefetch(image + static_cast<std::size_t>(indices[k + 1]) * pixels, 0, 0);
    if (raw_) {
      std::memcpy(out[0] + k * pixels, from, pixels);
    } else {
      for (std::size_t p = 0; p < pixels; ++p) values[k * pixels + p] = values_[from[p]];
    }
    std::memcpy(out[1] + k * sizeof(int64_t), label + indices[k], sizeof(int64_t));
  }
}

}  // namespace saturate::data
