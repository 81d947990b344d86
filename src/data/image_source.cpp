// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/image_source.hpp"

#include "saturate/error.hpp"

namespace saturate::data {

ImageSource::ImageSource(std::shared_ptr<const RecordSource> records, ImageOptions options)
    : records_(std::move(records)), decoder_(std::make_shared<const ImageDecoder>(std::move(options))) {
  if (records_ == nullptr) throw ConfigError("ImageSource: the record source is null");
}

void ImageSource::read(const SampleAt& at, std::array<std::byte*, fields> out) const {
  // Used again and again by this thread; between two samples no source may keep anything of it.
  thread_local Record record;
  records_->read(at.index, record);
  try {
    decoder_->decode(record, at, out);
  } catch (const DataError& error) {  // the sample's name is made up only when somebody will read it
    throw DataError(records_->describe(at.index) + ": " + error.what());
  }
}

ImageStream::ImageStream(std::shared_ptr<const RecordStreamSource> records, ImageOptions options)
    : records_(std::move(records)), decoder_(std::make_shared<const ImageDecoder>(std::move(options))) {
  if (records_ == nullptr) throw ConfigError("ImageStream: the record source is null");
}

}  // namespace saturate::data
