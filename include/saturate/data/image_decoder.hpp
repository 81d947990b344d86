// SPDX-License-Identifier: Apache-2.0
// Encoded bytes to one row of a batch: decode, crop, resize, flip, normalize, without a tensor on the way. ImageSource
// and ImageStream are made of it; in a source of your own:
//
//   void read(const SampleAt& at, std::array<std::byte*, 2> out) const { decoder_.decode(my_record(at), at, out); }
#pragma once

#include "saturate/data/image_options.hpp"
#include "saturate/data/record_source.hpp"
#include "saturate/data/source.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace saturate::data {

/// JPEG (baseline, progressive, grey, CMYK) and PNG (any kind; 16 bits are cut to 8, alpha is dropped), known by their
/// first bytes. Of a JPEG, the rows under the crop are not decoded: only the end mark is looked for there. A truncated
/// file is an error, and so is a damaged one wherever the damage shows.
class ImageDecoder {
 public:
  static constexpr std::size_t fields = 2;

  /// @throws ConfigError when a size, probability, range, mean or std cannot work.
  explicit ImageDecoder(ImageOptions options);

  /// Image [channels, height, width] and label (int64, {}).
  std::array<FieldLayout, fields> layout() const;

  /// Writes the image to out[0] and its label to out[1]. All random choices are SampleRandom(at)'s. Several threads may
  /// decode at once; each keeps its buffers.
  /// @param where names the sample in what is thrown.
  /// @throws DataError when the record has no image or no label, the image cannot be decoded in full, has more than
  /// 2^28 pixels or is smaller than the crop, or the label is no integer or out of range.
  void decode(const Record& record, const SampleAt& at, std::array<std::byte*, fields> out,
              std::string_view where = {}) const;

  const ImageOptions& options() const { return options_; }

 private:
  void decode_image(std::span<const std::byte> bytes, const SampleAt& at, std::byte* out) const;
  int64_t label_of(const Record& record) const;
  std::span<const std::byte> image_of(const Record& record) const;

  ImageOptions options_;
  std::vector<std::string> image_parts_, label_parts_;
  std::array<float, 3> mean_{}, std_{};
};

}  // namespace saturate::data
