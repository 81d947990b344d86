// SPDX-License-Identifier: Apache-2.0
// Images and labels from records: an image folder, tar shards, a RecordSource of your own.
//
//   st::data::ImageSource source(st::data::ImageFolder("train"), {.height = 224, .width = 224});
//   st::data::PrefetchLoader loader(source, {.batch_size = 256, .shuffle = true});
#pragma once

#include "saturate/data/image_decoder.hpp"
#include "saturate/data/image_options.hpp"
#include "saturate/data/record_source.hpp"
#include "saturate/data/record_stream.hpp"
#include "saturate/data/source.hpp"

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace saturate::data {

/// A Source whose samples are images [channels, height, width] and labels (int64, {}). Cheap to copy: copies share the
/// records.
class ImageSource {
 public:
  static constexpr std::size_t fields = ImageDecoder::fields;

  /// @throws ConfigError when `records` is null, or as ImageDecoder.
  ImageSource(std::shared_ptr<const RecordSource> records, ImageOptions options);
  template <std::derived_from<RecordSource> Records>
  ImageSource(Records records, ImageOptions options)
      : ImageSource(std::make_shared<const Records>(std::move(records)), std::move(options)) {}

  int64_t size() const { return records_->size(); }
  std::array<FieldLayout, fields> layout() const { return decoder_->layout(); }
  std::vector<int64_t> shard_sizes() const { return records_->shard_sizes(); }
  /// @throws DataError that names the file and the sample.
  void read(const SampleAt& at, std::array<std::byte*, fields> out) const;

  const RecordSource& records() const { return *records_; }
  const ImageOptions& options() const { return decoder_->options(); }

 private:
  std::shared_ptr<const RecordSource> records_;
  std::shared_ptr<const ImageDecoder> decoder_;
};

static_assert(Source<ImageSource>);

/// The same for records that come one after the other.
class ImageStream {
 public:
  static constexpr std::size_t fields = ImageDecoder::fields;

  /// @throws ConfigError when `records` is null, or as ImageDecoder.
  ImageStream(std::shared_ptr<const RecordStreamSource> records, ImageOptions options);
  template <std::derived_from<RecordStreamSource> Records>
  ImageStream(Records records, ImageOptions options)
      : ImageStream(std::make_shared<const Records>(std::move(records)), std::move(options)) {}

  std::array<FieldLayout, fields> layout() const { return decoder_->layout(); }
  /// One pass over a part of the records.
  std::unique_ptr<RecordStream> open(const StreamPart& part) const { return records_->open(part); }
  /// Decodes one of them. @throws DataError that starts with `where`.
  void read(const Record& record, const std::string& where, const SampleAt& at,
            std::array<std::byte*, fields> out) const {
    decoder_->decode(record, at, out, where);
  }

 private:
  std::shared_ptr<const RecordStreamSource> records_;
  std::shared_ptr<const ImageDecoder> decoder_;
};

}  // namespace saturate::data
