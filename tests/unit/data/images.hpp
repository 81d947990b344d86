// SPDX-License-Identifier: Apache-2.0
// Images for tests: the files of images/ (make_fixtures.py), and records made of them.
#pragma once

#include "saturate/data/image_decoder.hpp"
#include "saturate/data/image_source.hpp"
#include "saturate/data/record_source.hpp"
#include "saturate/data/sample_at.hpp"

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace images {

using Bytes = std::vector<char>;

inline Bytes load(const std::string& name) {
  std::ifstream file(SATURATE_SOURCE_DIR "/tests/unit/data/images/" + name, std::ios::binary);
  if (!file) throw std::runtime_error("no fixture " + name);
  return Bytes(std::istreambuf_iterator<char>(file), {});
}

inline std::span<const std::byte> span_of(const Bytes& bytes) { return std::as_bytes(std::span(bytes)); }

/// One image and its label; they must outlive it.
inline saturate::data::Record record_of(const Bytes& image, const Bytes& label, const char* kind = "cls") {
  saturate::data::Record record;
  record.parts = {{"jpg", span_of(image)}, {kind, span_of(label)}};
  return record;
}

/// The image field of a decoded sample.
template <class T>
std::vector<T> decode(const saturate::data::ImageDecoder& decoder, const Bytes& image,
                      const saturate::data::SampleAt& at = 0) {
  std::vector<T> values(static_cast<std::size_t>(decoder.layout()[0].numel()));
  if (decoder.layout()[0].bytes() != static_cast<int64_t>(values.size() * sizeof(T))) throw std::logic_error("dtype");
  int64_t label = 0;
  decoder.decode(record_of(image, {'3'}), at,
                 {reinterpret_cast<std::byte*>(values.data()), reinterpret_cast<std::byte*>(&label)});
  return values;
}

/// Records in memory.
class Memory : public saturate::data::RecordSource {
 public:
  explicit Memory(std::vector<Bytes> images) : images_(std::move(images)) {}
  int64_t size() const override { return static_cast<int64_t>(images_.size()); }
  void read(int64_t index, saturate::data::Record& out) const override {
    out.parts = {{"png", span_of(images_.at(static_cast<std::size_t>(index)))}};
    out.label = index;
  }
  std::string describe(int64_t index) const override { return "memory, sample " + std::to_string(index); }

 private:
  std::vector<Bytes> images_;
};

}  // namespace images
