// SPDX-License-Identifier: Apache-2.0
// What becomes of an encoded image on its way into a batch.
//
//   st::data::ImageOptions train{.height = 224, .width = 224, .crop = st::data::Crop::random_resized, .flip = 0.5,
//                                .mean = {0.485, 0.456, 0.406}, .std = {0.229, 0.224, 0.225}};
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace saturate::data {

/// Which part of the image is taken.
enum class Crop {
  none,           ///< all of it, resized to height x width; the aspect ratio changes
  center,         ///< height x width from the middle
  random,         ///< height x width from anywhere
  random_resized  ///< a rectangle of random area and aspect ratio, resized to height x width (torchvision's rule)
};

/// How a sample lies in the batch. In all of them its shape is [C, H, W].
enum class ImageFormat {
  float_contiguous,     ///< float32 (x / 255 - mean) / std, one plane a channel
  float_channels_last,  ///< the same values, the channels of a pixel side by side
  uint8_channels_last   ///< pixels as they are, a quarter of the bytes: CropFlipNormalize finishes them on the device
};

/// Antialiased bilinear resizing throughout. An EXIF orientation is not applied.
struct ImageOptions {
  int64_t height = 224;  ///< of the output
  int64_t width = 224;
  Crop crop = Crop::none;
  /// Crop::center and random: the shorter side is resized to this before the crop; 0: pixels stay as they are.
  int64_t resize = 0;
  std::array<double, 2> scale{0.08, 1.0};             ///< random_resized: share of the area, from and to
  std::array<double, 2> ratio{3.0 / 4.0, 4.0 / 3.0};  ///< random_resized: width / height, from and to
  double flip = 0;                                    ///< probability of a mirrored image
  std::vector<double> mean;  ///< of values in 0..1: one for each channel, or one for all; empty: 0
  std::vector<double> std;   ///< positive; empty: 1
  int64_t channels = 3;      ///< 3, RGB; or 1, grey (ITU-R 601)
  ImageFormat format = ImageFormat::float_contiguous;
  /// JPEG: decode at 1/2, 1/4 or 1/8 of the size where what is left is still no smaller than the output. Faster;
  /// values differ a little from those of the whole image resized.
  bool scaled_decode = true;

  std::string image = "jpg;jpeg;png";  ///< parts of a record that may hold the image: the first that is there
  /// Parts that may hold the label: text of one integer, or JSON (extension json) with an integer in `label_field`.
  /// A record without such a part has its own label (Record::label).
  std::string label = "cls";
  std::string label_field = "label";   ///< a member's name, or a JSON pointer that starts with '/'
  std::optional<int64_t> num_classes;  ///< labels must then be in [0, num_classes)
};

}  // namespace saturate::data
