// SPDX-License-Identifier: Apache-2.0
#include "png.hpp"

#include "saturate/error.hpp"

#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <string>

namespace saturate::data::detail {
namespace {

struct Stream {
  std::span<const std::byte> rest;
  std::jmp_buf jump;
  char message[256] = "";
};

[[noreturn]] void on_error(png_structp png, png_const_charp message) {
  auto& stream = *static_cast<Stream*>(png_get_error_ptr(png));
  std::snprintf(stream.message, sizeof stream.message, "%s", message);
  std::longjmp(stream.jump, 1);
}

// Of parts that are not pixels, and of what libpng can make up for without a difference.
void on_warning(png_structp, png_const_charp) {}

void on_read(png_structp png, png_bytep to, std::size_t count) {
  auto& stream = *static_cast<Stream*>(png_get_io_ptr(png));
  if (count > stream.rest.size()) png_error(png, "Premature end of file");
  std::memcpy(to, stream.rest.data(), count);
  stream.rest = stream.rest.subspan(count);
}

void rgb_to_grey(uint8_t* pixels, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const uint8_t* from = pixels + 3 * i;
    pixels[i] = static_cast<uint8_t>((from[0] * 19595 + from[1] * 38470 + from[2] * 7471 + 0x8000) >> 16);
  }
}

}  // namespace

struct PngReader::Decoder {
  Stream stream;
  png_structp png = nullptr;
  png_infop info = nullptr;
  bool color = true;
  Region region;
  int64_t width = 0, height = 0;
  std::size_t row_bytes = 0;
  int passes = 1;
  uint8_t *to = nullptr, *spare_row = nullptr;

  explicit Decoder(std::span<const std::byte> bytes) { stream.rest = bytes; }
  ~Decoder() { png_destroy_read_struct(&png, &info, nullptr); }

  /// `step` must not own anything: an error jumps over its destructors.
  void run(void (*step)(Decoder&)) {
    if (setjmp(stream.jump) == 0) {
      step(*this);
      return;
    }
    throw DataError(std::string("PNG: ") + stream.message);
  }

  void read_header() {
    png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &stream, on_error, on_warning);
    if (png != nullptr) info = png_create_info_struct(png);
    if (info == nullptr) {
      std::snprintf(stream.message, sizeof stream.message, "libpng could not be set up");
      std::longjmp(stream.jump, 1);
    }
    png_set_read_fn(png, &stream, on_read);
    png_set_user_limits(png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);  // check_size() is the limit
    png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, nullptr, 0);
    png_read_info(png, info);
    width = png_get_image_width(png, info);
    height = png_get_image_height(png, info);
  }

  void choose_format() {
    const int type = png_get_color_type(png, info);
    png_set_strip_16(png);
    png_set_packing(png);
    png_set_strip_alpha(png);
    if (type == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
    if (type == PNG_COLOR_TYPE_GRAY && png_get_bit_depth(png, info) < 8) png_set_expand_gray_1_2_4_to_8(png);
    if (color) {
      if ((type & PNG_COLOR_MASK_COLOR) == 0) png_set_gray_to_rgb(png);
      png_set_filler(png, 0xff, PNG_FILLER_AFTER);
    }
    passes = png_set_interlace_handling(png);
    png_read_update_info(png, info);
    row_bytes = png_get_rowbytes(png, info);
  }

  // An interlaced image comes in passes over all rows, so all are kept; of another, those of the region.
  void read_rows() {
    for (int pass = 0; pass < passes; ++pass) {
      for (int64_t y = 0; y < height; ++y) {
        const int64_t row = passes > 1 ? y : y - region.y;
        const bool wanted = passes > 1 || (row >= 0 && row < region.height);
        png_read_row(png, wanted ? to + static_cast<std::size_t>(row) * row_bytes : spare_row, nullptr);
      }
    }
    png_read_end(png, nullptr);
  }
};

PngReader::PngReader(std::span<const std::byte> bytes) : decoder_(std::make_unique<Decoder>(bytes)) {
  decoder_->run([](Decoder& self) { self.read_header(); });
  check_size(size(), "PNG");
  // Deflate packs at most 1032 bytes into one, and a row has at least one bit a pixel.
  const auto most = static_cast<int64_t>(bytes.size()) * 1032 * 8;
  if (decoder_->width * decoder_->height > most)
    throw DataError("PNG: its header promises more than the file can hold");
}

PngReader::~PngReader() = default;

ImageSize PngReader::size() const { return {decoder_->width, decoder_->height}; }

PixelView PngReader::read(const Region& region, bool color, Scratch& scratch) {
  Decoder& decoder = *decoder_;
  decoder.region = region;
  decoder.color = color;
  decoder.run([](Decoder& self) { self.choose_format(); });
  const bool whole = decoder.passes > 1;
  const int64_t rows = whole ? decoder.height : region.height;
  decoder.to = scratch.at_least(decoder.row_bytes * static_cast<std::size_t>(rows + 1));
  decoder.spare_row = decoder.to + decoder.row_bytes * static_cast<std::size_t>(rows);
  decoder.run([](Decoder& self) { self.read_rows(); });

  auto stride = static_cast<int64_t>(decoder.row_bytes);
  int64_t pixel_bytes = stride / decoder.width;
  if (!color && pixel_bytes == 3) {
    rgb_to_grey(decoder.to, rows * decoder.width);
    stride = decoder.width;
    pixel_bytes = 1;
  }
  return {decoder.to + (whole ? region.y * stride : 0) + region.x * pixel_bytes, stride};
}

}  // namespace saturate::data::detail
