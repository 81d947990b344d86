// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/image_decoder.hpp"

#include "crop_geometry.hpp"
#include "jpeg.hpp"
#include "pixel_loops.hpp"
#include "png.hpp"
#include "resample.hpp"
#include "saturate/data/stage.hpp"
#include "saturate/error.hpp"
#include "saturate/log.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

namespace saturate::data {
namespace {

using namespace detail;

// --- options -----------------------------------------------------------------------------------------------------

void require_option(bool good, const std::string& what) {
  if (!good) throw ConfigError("ImageOptions: " + what);
}

std::string range_text(const std::array<double, 2>& range) {
  return std::to_string(range[0]) + " to " + std::to_string(range[1]);
}

void check_geometry(const ImageOptions& o) {
  for (const auto& [name, side] : {std::pair{"height", o.height}, std::pair{"width", o.width}}) {
    require_option(side > 0 && side <= 65535,
                   std::string(name) + " is " + std::to_string(side) + "; it must be in 1..65535");
  }
  require_option(o.resize >= 0 && o.resize <= 65535,
                 "resize is " + std::to_string(o.resize) + "; it must be in 0..65535");
  require_option(o.scale[0] > 0 && o.scale[0] <= o.scale[1] && o.scale[1] <= 1,
                 "scale goes from " + range_text(o.scale) + "; shares of the area ascend within (0, 1]");
  require_option(o.ratio[0] > 0 && o.ratio[0] <= o.ratio[1] && std::isfinite(o.ratio[1]),
                 "ratio goes from " + range_text(o.ratio) + "; width / height is positive and ascends");
  require_option(o.flip >= 0 && o.flip <= 1, "flip is " + std::to_string(o.flip) + "; a probability is in 0..1");
  const bool crops = o.crop == Crop::center || o.crop == Crop::random;
  require_option(!crops || o.resize == 0 || o.resize >= std::min(o.height, o.width),
                 "resize is " + std::to_string(o.resize) + ", and no image of that shorter side holds a crop of " +
                     std::to_string(o.width) + " x " + std::to_string(o.height));
}

void warn_without_effect(const ImageOptions& o) {
  const bool crops = o.crop == Crop::center || o.crop == Crop::random;
  if (o.resize > 0 && !crops) {
    log::warn(
        "ImageOptions: resize has no effect without Crop::center or Crop::random: the image or the rectangle is "
        "resized to height x width");
  }
  const ImageOptions defaults;
  if (o.crop != Crop::random_resized && (o.scale != defaults.scale || o.ratio != defaults.ratio)) {
    log::warn("ImageOptions: scale and ratio have no effect without Crop::random_resized");
  }
  if (o.format == ImageFormat::uint8_channels_last && !(o.mean.empty() && o.std.empty())) {
    log::warn("ImageOptions: mean and std have no effect on uint8 pixels; give them to CropFlipNormalize");
  }
}

std::array<float, 3> per_channel(const std::vector<double>& values, const char* name, int64_t channels,
                                 float otherwise) {
  const auto count = static_cast<int64_t>(values.size());
  require_option(count <= 1 || count == channels, std::string(name) + " has " + std::to_string(count) + " values for " +
                                                      std::to_string(channels) + " channels");
  std::array<float, 3> result;
  for (std::size_t c = 0; c < 3; ++c) {
    result[c] = values.empty() ? otherwise : static_cast<float>(values[std::min(c, values.size() - 1)]);
    require_option(std::isfinite(result[c]), std::string(name) + " is not finite");
  }
  return result;
}

std::vector<std::string> alternatives(const std::string& text, const char* name) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(';', begin), text.size());
    std::string part = text.substr(begin, end - begin);
    // Extensions of records are in lower case.
    for (char& c : part) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    require_option(part.empty() || part.front() != '.',
                   std::string(name) + ": '" + part + "' starts with a dot; extensions have none");
    if (!part.empty()) parts.push_back(std::move(part));
    begin = end + 1;
  }
  return parts;
}

// --- labels --------------------------------------------------------------------------------------------------------

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string extensions_of(const Record& record) {
  std::string text;
  for (const auto& part : record.parts) text += (text.empty() ? "" : ", ") + std::string(part.extension);
  return text.empty() ? "nothing" : text;
}

std::string in_quotes(std::string_view text) {
  return "'" + std::string(text.substr(0, 40)) + (text.size() > 40 ? "...'" : "'");
}

int64_t integer_of(std::string_view text, std::string_view part) {
  const char* spaces = " \t\r\n";
  const auto first = text.find_first_not_of(spaces);
  const std::string_view digits =
      first == text.npos ? std::string_view{} : text.substr(first, text.find_last_not_of(spaces) + 1 - first);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error == std::errc{} && end == digits.data() + digits.size()) return value;
  throw DataError("the part " + in_quotes(part) + " is " + in_quotes(text) + "; a label is one integer");
}

int64_t json_label(std::string_view text, const std::string& field, std::string_view part) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) throw DataError("the part " + in_quotes(part) + " is not JSON");
  const nlohmann::json* value = nullptr;
  if (field.starts_with('/')) {
    const nlohmann::json::json_pointer pointer(field);
    if (json.contains(pointer)) value = &json.at(pointer);
  } else if (json.is_object() && json.contains(field)) {
    value = &json.at(field);
  }
  if (value == nullptr) throw DataError("the part " + in_quotes(part) + " has no " + in_quotes(field));
  const bool fits = value->is_number_integer() && !(value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX);
  if (!fits) throw DataError(in_quotes(field) + " of the part " + in_quotes(part) + " is no integer");
  return value->get<int64_t>();
}

void check_field(const ImageOptions& o, const std::vector<std::string>& parts) {
  if (std::find(parts.begin(), parts.end(), "json") == parts.end()) return;
  require_option(!o.label_field.empty(), "label_field is empty; name the JSON member that is the label");
  if (!o.label_field.starts_with('/')) return;
  try {
    const nlohmann::json::json_pointer pointer(o.label_field);
  } catch (const nlohmann::json::exception&) {
    require_option(false, "label_field '" + o.label_field + "' is no JSON pointer");
  }
}

// --- pixels --------------------------------------------------------------------------------------------------------

/// What a thread keeps between images.
struct Workspace {
  JpegReader jpeg;
  Scratch pixels, mirrored;
  Resampler resampler;
};

Workspace& workspace() {
  thread_local Workspace space;
  return space;
}

/// Either kind of image, opened.
class EncodedImage {
 public:
  EncodedImage(std::span<const std::byte> bytes, Workspace& space) : space_(space) {
    const std::string_view text = text_of(bytes);
    jpeg_ = text.starts_with("\xff\xd8");
    if (jpeg_) {
      size_ = space.jpeg.open(bytes);
    } else if (text.starts_with("\x89PNG")) {
      size_ = png_.emplace(bytes).size();
    } else {
      throw DataError(bytes.empty() ? "the image is empty" : "the image is neither JPEG nor PNG: it starts otherwise");
    }
  }

  const ImageSize& size() const { return size_; }
  bool can_scale() const { return jpeg_; }
  PixelView read(int eighths, const Region& region, bool color) {
    if (jpeg_) return space_.jpeg.read(eighths, region, color, space_.pixels);
    return png_->read(region, color, space_.pixels);
  }

 private:
  Workspace& space_;
  std::optional<PngReader> png_;
  ImageSize size_;
  bool jpeg_ = false;
};

/// The rows of a finished sample.
class RowWriter {
 public:
  RowWriter(const ImageOptions& options, const Normalization& by, std::byte* out)
      : options_(options), by_(by), out_(out) {}

  template <class T>
  void write(int64_t y, const T* row, const RowLoops<T>& loops) {
    const int64_t width = options_.width, channels = options_.channels;
    auto* floats = reinterpret_cast<float*>(out_);
    switch (options_.format) {
      case ImageFormat::float_contiguous:
        return loops.planes(row, width, channels, by_, floats + y * width, options_.height * width);
      case ImageFormat::float_channels_last:
        return loops.interleaved(row, width, channels, by_, floats + y * width * channels);
      case ImageFormat::uint8_channels_last:
        return loops.bytes(row, width, channels, reinterpret_cast<uint8_t*>(out_) + y * width * channels);
    }
  }

 private:
  const ImageOptions& options_;
  const Normalization& by_;
  std::byte* out_;
};

void copy_rows(const PixelView& view, bool color, bool flip, const ImageOptions& options, Workspace& space,
               RowWriter& writer) {
  const PixelLoops& loops = pixel_loops();
  uint8_t* mirrored = space.mirrored.at_least(static_cast<std::size_t>(options.width * bytes_per_pixel(color)));
  for (int64_t y = 0; y < options.height; ++y) {
    const uint8_t* row = view.data + y * view.stride;
    if (flip) loops.mirror(row, options.width, bytes_per_pixel(color), mirrored);
    writer.write(y, flip ? mirrored : row, loops.of_bytes);
  }
}

// libjpeg-turbo has vector code for these scales and the whole; those between are slower than the whole.
int scale_for(const CropGeometry& geometry) {
  const double least = std::min(geometry.x.scale, geometry.y.scale);
  for (const int eighths : {1, 2, 4}) {
    if (least * eighths >= 8) return eighths;
  }
  return 8;
}

}  // namespace

ImageDecoder::ImageDecoder(ImageOptions options) : options_(std::move(options)) {
  check_geometry(options_);
  require_option(options_.channels == 1 || options_.channels == 3,
                 "channels is " + std::to_string(options_.channels) + "; it must be 3 (RGB) or 1 (grey)");
  mean_ = per_channel(options_.mean, "mean", options_.channels, 0);
  std_ = per_channel(options_.std, "std", options_.channels, 1);
  for (const float std : std_) require_option(std > 0, "std is " + std::to_string(std) + "; values are divided by it");
  image_parts_ = alternatives(options_.image, "image");
  label_parts_ = alternatives(options_.label, "label");
  require_option(!image_parts_.empty(), "image names no part of a record");
  check_field(options_, label_parts_);
  require_option(!options_.num_classes || *options_.num_classes > 0,
                 "num_classes is " + std::to_string(options_.num_classes.value_or(0)) + "; it must be positive");
  warn_without_effect(options_);
}

std::array<FieldLayout, ImageDecoder::fields> ImageDecoder::layout() const {
  const bool floats = options_.format != ImageFormat::uint8_channels_last;
  const bool planes = options_.format == ImageFormat::float_contiguous;
  return {FieldLayout{floats ? at::kFloat : at::kByte,
                      {options_.channels, options_.height, options_.width},
                      planes ? at::MemoryFormat::Contiguous : at::MemoryFormat::ChannelsLast},
          FieldLayout{at::kLong, {}}};
}

std::span<const std::byte> ImageDecoder::image_of(const Record& record) const {
  for (const std::string& extension : image_parts_) {
    if (const auto* part = record.find(extension)) return part->bytes;
  }
  throw DataError("no image: the sample has " + extensions_of(record) + ", and ImageOptions::image is '" +
                  options_.image + "'");
}

int64_t ImageDecoder::label_of(const Record& record) const {
  const Record::Part* part = nullptr;
  for (std::size_t i = 0; i < label_parts_.size() && part == nullptr; ++i) part = record.find(label_parts_[i]);
  int64_t label = 0;
  if (part != nullptr) {
    const std::string_view text = text_of(part->bytes);
    label = part->extension == "json" ? json_label(text, options_.label_field, part->extension)
                                      : integer_of(text, part->extension);
  } else if (record.label) {
    label = *record.label;
  } else {
    throw DataError("no label: the sample has " + extensions_of(record) + ", and ImageOptions::label is '" +
                    options_.label + "'");
  }
  if (options_.num_classes && (label < 0 || label >= *options_.num_classes)) {
    throw DataError("label " + std::to_string(label) + " is not in 0.." + std::to_string(*options_.num_classes - 1) +
                    " (ImageOptions::num_classes)");
  }
  return label;
}

void ImageDecoder::decode_image(std::span<const std::byte> bytes, const SampleAt& at, std::byte* out) const {
  Workspace& space = workspace();
  EncodedImage image(bytes, space);
  CropGeometry geometry = crop_geometry(options_, image.size(), SampleRandom(at));
  const int eighths = options_.scaled_decode && image.can_scale() ? scale_for(geometry) : 8;
  if (eighths < 8) {
    const ImageSize size = JpegReader::scaled(image.size(), eighths);
    geometry.x = geometry.x.scaled(eighths, size.width);
    geometry.y = geometry.y.scaled(eighths, size.height);
  }
  const bool color = options_.channels == 3;
  const Normalization by{{mean_[0], mean_[1], mean_[2]}, {std_[0], std_[1], std_[2]}};
  RowWriter writer(options_, by, out);
  if (geometry.x.copies() && geometry.y.copies()) {
    const Region region{geometry.x.first_pixel(), geometry.y.first_pixel(), options_.width, options_.height};
    return copy_rows(image.read(eighths, region, color), color, geometry.flip, options_, space, writer);
  }
  space.resampler.prepare(geometry.x, geometry.y);
  const PixelView view = image.read(eighths, space.resampler.region(), color);
  for (int64_t y = 0; y < options_.height; ++y) {
    writer.write(y, space.resampler.row(view, y, color, geometry.flip), pixel_loops().of_floats);
  }
}

void ImageDecoder::decode(const Record& record, const SampleAt& at, std::array<std::byte*, fields> out,
                          std::string_view where) const {
  const StageScope timed(Stage::decode);
  try {
    const int64_t label = label_of(record);
    decode_image(image_of(record), at, out[0]);
    std::memcpy(out[1], &label, sizeof label);
  } catch (const DataError& error) {
    if (where.empty()) throw;
    throw DataError(std::string(where) + ": " + error.what());
  }
}

}  // namespace saturate::data
