// SPDX-License-Identifier: Apache-2.0
// Samples that are still bytes: files of a folder, members of a tar shard. ImageSource decodes them into a batch.
// Derive from RecordSource for a format of your own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace saturate::data {

/// The encoded parts of one sample. One is used again and again: storage keeps its capacity.
struct Record {
  struct Part {
    std::string_view extension;        ///< lower case, without the leading dot: "jpg", "cls", "seg.png"
    std::span<const std::byte> bytes;  ///< in `storage`, or elsewhere while the source lives
  };
  std::vector<Part> parts;
  std::vector<std::byte> storage;
  std::optional<int64_t> label;  ///< where the source knows it by other means than a part (a class folder)

  /// The part with that extension, or nullptr.
  const Part* find(std::string_view extension) const {
    for (const Part& part : parts) {
      if (part.extension == extension) return &part;
    }
    return nullptr;
  }
};

class RecordSource {
 public:
  virtual ~RecordSource() = default;
  /// Samples.
  virtual int64_t size() const = 0;
  /// Reads sample `index` into `out`, whose old contents are dropped. Called on several threads at once.
  /// @throws DataError when it cannot be read, naming the file.
  virtual void read(int64_t index, Record& out) const = 0;
  /// Where sample `index` comes from, for messages: "train-000.tar, sample 'n01440764/5'".
  virtual std::string describe(int64_t index) const = 0;
  /// Samples of each file in order (shards), when reading neighbours is cheaper than jumping; empty when it is not.
  virtual std::vector<int64_t> shard_sizes() const { return {}; }
};

}  // namespace saturate::data
