// SPDX-License-Identifier: Apache-2.0
#include "jpeg.hpp"

#include "saturate/error.hpp"

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <string>

// jpeglib.h needs FILE and size_t.
#include <jerror.h>
#include <jpeglib.h>

namespace saturate::data::detail {
namespace {

// Passes over the image that a file may ask for: more is an attack on the reader's time.
constexpr int most_scans = 500;

struct ErrorState : jpeg_error_mgr {
  std::jmp_buf jump;
  bool in_scan = false;
  char message[JMSG_LENGTH_MAX];
};

ErrorState& error_state(j_common_ptr info) { return *static_cast<ErrorState*>(info->err); }

// libjpeg expects that this does not return. Only frames of libjpeg and of functions without destructors lie between.
[[noreturn]] void on_error(j_common_ptr info) {
  ErrorState& state = error_state(info);
  state.format_message(info, state.message);
  std::longjmp(state.jump, 1);
}

// About the header only: the pixels are as they should be. Everything else that libjpeg warns of comes from lost data.
bool harmless(const ErrorState& state) {
  switch (state.msg_code) {
    case JWRN_ADOBE_XFORM:
    case JWRN_BOGUS_ICC:
    case JWRN_JFIF_MAJOR:
    case JWRN_NOT_SEQUENTIAL: return true;
    case JWRN_EXTRANEOUS_DATA: return !state.in_scan;
    default: return false;
  }
}

void on_message(j_common_ptr info, int level) {
  if (level < 0 && !harmless(error_state(info))) on_error(info);
}

void on_progress(j_common_ptr info) {
  if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= most_scans) return;
  ErrorState& state = error_state(info);
  std::snprintf(state.message, sizeof state.message, "more than %d scans", most_scans);
  std::longjmp(state.jump, 1);
}

// PIL's arithmetic for what Adobe's programs write: CMYK with all values inverted.
void cmyk_to_rgbx(uint8_t* pixels, int64_t count) {
  for (int64_t i = 0; i < count; ++i, pixels += 4) {
    const int key = pixels[3];
    for (int c = 0; c < 3; ++c) {
      const int product = (255 - pixels[c]) * key + 128;
      pixels[c] = static_cast<uint8_t>(key - ((product >> 8) + product) / 256);
    }
  }
}

void rgbx_to_grey(uint8_t* pixels, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const uint8_t* from = pixels + 4 * i;
    pixels[i] = static_cast<uint8_t>((from[0] * 19595 + from[1] * 38470 + from[2] * 7471 + 0x8000) >> 16);
  }
}

}  // namespace

struct JpegReader::Decoder {
  jpeg_decompress_struct info{};
  ErrorState error{};
  jpeg_progress_mgr progress{};
  std::span<const std::byte> bytes;
  int eighths = 8;
  bool color = true;
  Region region;
  int64_t first_column = 0;  // of the image, in the first byte of a row of `to`
  int64_t stride = 0;
  uint8_t* to = nullptr;

  Decoder() {
    info.err = jpeg_std_error(&error);
    error.error_exit = on_error;
    error.emit_message = on_message;
    progress.progress_monitor = on_progress;
    run([](Decoder& self) { jpeg_create_decompress(&self.info); });
    info.progress = &progress;
  }
  ~Decoder() { jpeg_destroy_decompress(&info); }

  /// Whatever of libjpeg may fail goes through here. `step` must not own anything: an error jumps over its destructors.
  void run(void (*step)(Decoder&)) {
    if (setjmp(error.jump) == 0) {
      step(*this);
      return;
    }
    if (info.mem != nullptr) jpeg_abort_decompress(&info);
    throw DataError(std::string("JPEG: ") + error.message);
  }

  [[noreturn]] void fail(const char* what) {
    std::snprintf(error.message, sizeof error.message, "%s", what);
    std::longjmp(error.jump, 1);
  }

  void read_header() {
    error.in_scan = false;
    jpeg_abort_decompress(&info);  // what an earlier image left
    jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
    jpeg_read_header(&info, TRUE);
  }

  bool four_inks() const { return info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK; }

  void start() {
    info.out_color_space = four_inks() ? JCS_CMYK : color ? JCS_EXT_RGBX : JCS_GRAYSCALE;
    if (!color && info.jpeg_color_space == JCS_RGB) info.out_color_space = JCS_EXT_RGBX;
    info.scale_num = static_cast<unsigned>(eighths);
    info.scale_denom = 8;
    error.in_scan = true;
    jpeg_start_decompress(&info);
    choose_columns();
  }

  // Blocks at the left and the right that nobody needs are neither transformed nor converted, where that is at least a
  // quarter of the width: it has its price. Two columns more than asked for, on each side: the chroma of a pixel is
  // smoothed with its neighbour's.
  void choose_columns() {
    first_column = 0;
    const auto width = static_cast<int64_t>(info.output_width);
    constexpr int64_t margin = 2;
    const int64_t left = std::max<int64_t>(region.x - margin, 0);
    const int64_t right = std::min(region.x + region.width + margin, width);
    if ((right - left) * 4 > width * 3) return;
    auto offset = static_cast<JDIMENSION>(left), columns = static_cast<JDIMENSION>(right - left);
    jpeg_crop_scanline(&info, &offset, &columns);
    first_column = offset;
  }

  void read_rows() {
    if (region.y > 0) jpeg_skip_scanlines(&info, static_cast<JDIMENSION>(region.y));
    JSAMPROW rows[16];
    const auto end = static_cast<JDIMENSION>(region.y + region.height);
    while (info.output_scanline < end) {
      const JDIMENSION left = end - info.output_scanline, most = left < 16 ? left : 16;
      uint8_t* row = to + static_cast<int64_t>(info.output_scanline - region.y) * stride;
      for (JDIMENSION i = 0; i < most; ++i, row += stride) rows[i] = row;
      jpeg_read_scanlines(&info, rows, most);
    }
    finish();
  }

  // The rows below the region are not decoded. No entropy-coded data holds the two bytes of an end mark.
  void finish() {
    if (info.output_scanline == info.output_height) {
      jpeg_finish_decompress(&info);
      return;
    }
    if (!jpeg_input_complete(&info) && info.unread_marker != JPEG_EOI && !end_mark_follows())
      fail("Premature end of file");
    jpeg_abort_decompress(&info);
  }

  bool end_mark_follows() const {
    const auto* begin = info.src->next_input_byte;
    for (const auto* at = begin + info.src->bytes_in_buffer; at - begin >= 2; --at) {
      if (at[-1] == JPEG_EOI && at[-2] == 0xff) return true;
    }
    return false;
  }
};

JpegReader::JpegReader() : decoder_(std::make_unique<Decoder>()) {}
JpegReader::~JpegReader() = default;

ImageSize JpegReader::open(std::span<const std::byte> bytes) {
  decoder_->bytes = bytes;
  decoder_->run([](Decoder& self) { self.read_header(); });
  const ImageSize size{static_cast<int64_t>(decoder_->info.image_width),
                       static_cast<int64_t>(decoder_->info.image_height)};
  check_size(size, "JPEG");
  return size;
}

ImageSize JpegReader::scaled(const ImageSize& size, int eighths) {
  return {(size.width * eighths + 7) / 8, (size.height * eighths + 7) / 8};
}

PixelView JpegReader::read(int eighths, const Region& region, bool color, Scratch& scratch) {
  Decoder& decoder = *decoder_;
  decoder.eighths = eighths;
  decoder.region = region;
  decoder.color = color;
  decoder.run([](Decoder& self) { self.start(); });
  const auto pixel_bytes = static_cast<int64_t>(decoder.info.output_components);
  decoder.stride = pixel_bytes * static_cast<int64_t>(decoder.info.output_width);
  const int64_t size = decoder.stride * region.height;
  decoder.to = scratch.at_least(static_cast<std::size_t>(size));
  const bool inks = decoder.info.out_color_space == JCS_CMYK;
  decoder.run([](Decoder& self) { self.read_rows(); });

  int64_t view_pixel = pixel_bytes;
  if (inks) cmyk_to_rgbx(decoder.to, size / pixel_bytes);
  if (!color && pixel_bytes == 4) {
    rgbx_to_grey(decoder.to, size / pixel_bytes);
    decoder.stride /= 4;
    view_pixel = 1;
  }
  return {decoder.to + (region.x - decoder.first_column) * view_pixel, decoder.stride};
}

}  // namespace saturate::data::detail
