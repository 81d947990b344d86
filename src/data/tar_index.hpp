// SPDX-License-Identifier: Apache-2.0
// Where the parts of every sample of one tar shard lie, in memory and in the file kept beside the shard.
//
// The file, little-endian: IndexHeader, Sample[samples + 1], Part[parts], the extensions and then the keys as text,
// each extension ended by a zero byte. The checksum is CRC-32 of all that follows the header.
#pragma once

#include "file_stamp.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace saturate::data::detail {

/// About 45 bytes a sample of two parts.
struct TarIndex {
  struct Sample {
    uint32_t first_part = 0;
    uint32_t key = 0;  ///< where its key begins in `keys`
  };
  struct Part {
    uint64_t offset = 0;
    uint64_t size : 48 = 0;
    uint64_t extension : 16 = 0;
  };

  FileStamp stamp;              ///< of the shard
  std::vector<Sample> samples;  ///< and one more, where the last one ends
  std::vector<Part> parts;
  std::vector<std::string> extensions;
  std::string keys;
  std::string damage;  ///< not empty: the last sample cannot be read, and this is why

  int64_t size() const { return static_cast<int64_t>(samples.size()) - 1; }
  std::string_view key(int64_t sample) const {
    const Sample* const at = &samples[static_cast<std::size_t>(sample)];
    return std::string_view(keys).substr(at[0].key, at[1].key - at[0].key);
  }
  std::span<const Part> parts_of(int64_t sample) const {
    const Sample* const at = &samples[static_cast<std::size_t>(sample)];
    return {parts.data() + at[0].first_part, parts.data() + at[1].first_part};
  }
};

/// Reads the headers of the tar at `path`. Cut or damaged after its first sample, it gives what is good, and `damage`.
/// @throws DataError naming the file: no tar, empty, compressed, without samples, samples against WebDataset's rules.
TarIndex build_tar_index(const std::string& path);

/// "train-000.tar.index"
std::string tar_index_path(const std::string& tar);
std::vector<std::byte> write_tar_index(const TarIndex& index);
/// Nothing where the bytes are no index, damaged, or of another file than the one with that stamp.
std::optional<TarIndex> parse_tar_index(std::span<const std::byte> bytes, const FileStamp& tar);

/// Keeps it beside the tar, atomically. @throws Error naming the index file.
void save_tar_index(const TarIndex& index, const std::string& tar);

/// The index kept beside the tar when it fits, else a new one, which is kept there if `keep` and it is not damaged. A
/// folder that cannot be written is a warning, once a process. @throws DataError as build_tar_index
TarIndex open_tar_index(const std::string& tar, bool keep);

}  // namespace saturate::data::detail
