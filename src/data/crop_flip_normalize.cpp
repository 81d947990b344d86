// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/crop_flip_normalize.hpp"

#include "crop_flip_normalize_kernels.hpp"
#include "crop_geometry.hpp"
#include "saturate/error.hpp"

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace saturate::data {
namespace detail {
namespace {

void crop_row(const uint8_t* from, float* to, const CropJob& job, bool flip, const float* table) noexcept {
  const int64_t step = flip ? -job.in.column : job.in.column;
  if (flip) from += (job.width - 1) * job.in.column;
  for (int32_t x = 0; x < job.width; ++x) to[x * job.out.column] = table[from[x * step]];
}

}  // namespace

void crop_flip_normalize_cpu(const uint8_t* pixels, float* values, const CropJob& job, const CropPlace* places,
                             int64_t count) noexcept {
  float table[most_channels][256];
  for (int32_t c = 0; c < job.channels; ++c) {
    for (int pixel = 0; pixel < 256; ++pixel)
      table[c][pixel] = (static_cast<float>(pixel) / 255.0f - job.mean[c]) / job.std[c];
  }
  for (int64_t n = 0; n < count; ++n) {
    const uint8_t* from = pixels + n * job.in.sample + places[n].y * job.in.row + places[n].x * job.in.column;
    float* to = values + n * job.out.sample;
    for (int32_t y = 0; y < job.height; ++y) {
      for (int32_t c = 0; c < job.channels; ++c) {
        crop_row(from + y * job.in.row + c * job.in.channel, to + y * job.out.row + c * job.out.channel, job,
                 places[n].flip != 0, table[c]);
      }
    }
  }
}

}  // namespace detail

namespace {

using namespace detail;
using Options = CropFlipNormalizeOptions;

constexpr int64_t longest = 65535;

void require(bool good, const std::string& what) {
  if (!good) throw ConfigError("CropFlipNormalize: " + what);
}

void check_values(const std::vector<double>& values, const char* name, bool positive) {
  const auto count = static_cast<int64_t>(values.size());
  require(count <= most_channels, std::string(name) + " has " + std::to_string(count) +
                                      " values; images have at most " + std::to_string(most_channels) + " channels");
  for (const double value : values) {
    const auto narrow = static_cast<float>(value);
    require(std::isfinite(narrow) && (!positive || narrow > 0), std::string(name) + " holds " + std::to_string(value) +
                                                                    "; it must be finite" +
                                                                    (positive ? " and positive" : ""));
  }
}

void check(const Options& o) {
  for (const auto& [name, side] : {std::pair{"height", o.height}, std::pair{"width", o.width}}) {
    require(side > 0 && side <= longest,
            std::string(name) + " is " + std::to_string(side) + "; it must be in 1..65535");
  }
  require(o.crop == Crop::random || o.crop == Crop::center,
          "crop must be Crop::random or Crop::center: nothing is resized here");
  require(o.flip >= 0 && o.flip <= 1, "flip is " + std::to_string(o.flip) + "; a probability is in 0..1");
  check_values(o.mean, "mean", false);
  check_values(o.std, "std", true);
}

void check_images(const Options& o, const at::Tensor& images, std::size_t places) {
  const auto fail = [](const std::string& what) { throw DataError("CropFlipNormalize: " + what); };
  if (!images.defined()) fail("the tensor of images is undefined");
  const bool device = images.is_cpu() || images.is_cuda();
  if (images.scalar_type() != at::kByte || images.layout() != at::kStrided || !device || images.dim() != 4) {
    fail("got " + images.toString() + " with " + std::to_string(images.dim()) + " dimensions on " +
         images.device().str() + "; images are a dense uint8 tensor [N, C, H, W] on the CPU or on a CUDA device");
  }
  if (images.size(1) < 1 || images.size(1) > most_channels) {
    fail("images have " + std::to_string(images.size(1)) + " channels; 1 to " + std::to_string(most_channels) +
         " are possible");
  }
  if (images.size(2) > longest || images.size(3) > longest) fail("images are larger than 65535 pixels a side");
  if (images.size(2) < o.height || images.size(3) < o.width) {
    fail("images of " + std::to_string(images.size(3)) + " x " + std::to_string(images.size(2)) +
         " are smaller than the crop of " + std::to_string(o.width) + " x " + std::to_string(o.height));
  }
  if (static_cast<int64_t>(places) != images.size(0)) {
    fail("there are " + std::to_string(images.size(0)) + " images, and positions of " + std::to_string(places));
  }
  if (images.is_cuda() && !has_crop_flip_normalize_cuda()) {
    throw ConfigError(crop_flip_normalize_cuda(nullptr, nullptr, {}, nullptr, 0, nullptr));
  }
}

CropStrides strides_of(const at::Tensor& tensor) {
  return {tensor.stride(0), tensor.stride(1), tensor.stride(2), tensor.stride(3)};
}

void fill(float (&to)[most_channels], const std::vector<double>& values, const char* name, int64_t channels,
          float otherwise) {
  const auto count = static_cast<int64_t>(values.size());
  require(count <= 1 || count == channels, std::string(name) + " has " + std::to_string(count) + " values for " +
                                               std::to_string(channels) + " channels");
  for (std::size_t c = 0; c < most_channels; ++c)
    to[c] = values.empty() ? otherwise : static_cast<float>(values[std::min(c, values.size() - 1)]);
}

std::vector<CropPlace> places_of(const Options& o, const at::Tensor& images, std::span<const SampleAt> at) {
  const ImageOptions rule{.height = o.height, .width = o.width, .crop = o.crop, .flip = o.flip};
  const ImageSize size{images.size(3), images.size(2)};
  std::vector<CropPlace> places;
  places.reserve(at.size());
  for (const SampleAt& sample : at) {
    const CropGeometry found = crop_geometry(rule, size, SampleRandom(sample));
    places.push_back({static_cast<uint16_t>(found.x.first_pixel()), static_cast<uint16_t>(found.y.first_pixel()),
                      static_cast<uint16_t>(found.flip)});
  }
  return places;
}

}  // namespace

CropFlipNormalize::CropFlipNormalize(CropFlipNormalizeOptions options) : options_(std::move(options)) {
  check(options_);
}

at::Tensor CropFlipNormalize::apply(const at::Tensor& images, std::span<const SampleAt> at) const {
  check_images(options_, images, at.size());
  const int64_t channels = images.size(1);
  CropJob job;
  job.channels = static_cast<int32_t>(channels);
  job.height = static_cast<int32_t>(options_.height);
  job.width = static_cast<int32_t>(options_.width);
  fill(job.mean, options_.mean, "mean", channels, 0);
  fill(job.std, options_.std, "std", channels, 1);
  const std::vector<CropPlace> places = places_of(options_, images, at);
  const auto format = options_.channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  at::Tensor values = at::empty({images.size(0), channels, options_.height, options_.width},
                                images.options().dtype(at::kFloat), format);
  job.in = strides_of(images);
  job.out = strides_of(values);
  const auto* from = images.const_data_ptr<uint8_t>();
  auto* to = values.mutable_data_ptr<float>();
  const auto count = images.size(0);
  if (images.is_cpu()) {
    crop_flip_normalize_cpu(from, to, job, places.data(), count);
    return values;
  }
  const c10::DeviceGuard guard(images.device());
  void* stream = c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(images.device()).native_handle();
  if (const char* error = crop_flip_normalize_cuda(from, to, job, places.data(), count, stream)) {
    throw Error(std::string("CropFlipNormalize: CUDA could not start the kernel: ") + error);
  }
  return values;
}

void CropFlipNormalize::operator()(std::span<at::Tensor> fields, std::span<const SampleAt> at) const {
  if (fields.empty()) throw DataError("CropFlipNormalize: the batch has no fields");
  fields[0] = apply(fields[0], at);
}

}  // namespace saturate::data
