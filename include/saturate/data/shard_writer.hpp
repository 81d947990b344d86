// SPDX-License-Identifier: Apache-2.0
// Packs samples into tar shards that TarShards, TarStream and WebDataset read.
//
//   st::data::ShardWriter writer("out/train-%06d.tar", {.max_samples = 10'000});
//   for (...) writer.add(key, {{"jpg", image}, {"cls", label}});
//   for (const std::string& shard : writer.finish()) ...
#pragma once

#include "saturate/data/record_source.hpp"

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace saturate::data {

struct ShardWriterOptions {
  int64_t max_samples = 0;          ///< in a shard; 0: as many as max_bytes allows
  int64_t max_bytes = 512ll << 20;  ///< of a shard's file; one sample may be larger and is then alone in its shard
  /// Replace shards that are there. finish() removes those with the next higher numbers, left by a longer run.
  bool overwrite = false;
  bool write_index = true;  ///< beside each shard, as TarShards keeps it
};

/// Writes uncompressed tars (ustar, pax where a name needs it). The same samples give the same bytes: owners and times
/// are left out. Each shard is written under a temporary name, "<shard>.tmp.<process>.<number>", read back, brought to
/// the disk and renamed: under its final name it is whole, whatever happens.
class ShardWriter {
 public:
  /// @param pattern a path with one %d, %6d or %06d, the shard's number from 0
  /// @throws ConfigError for a pattern or an option that cannot work, and where shards of that pattern are there
  /// already and overwrite is not set.
  explicit ShardWriter(std::string pattern, ShardWriterOptions options = {});
  /// Without finish(), the shard that is not complete is dropped. Those before it stay.
  ~ShardWriter();
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  /// @param key no dot in its last component, not used before in the shard  @param parts at least one, extensions as in
  /// Record: lower case, without the leading dot
  /// @throws ConfigError for a key or an extension that would not read back as it is; nothing has been written then.
  /// @throws Error naming the shard when it cannot be written; no more samples are taken then.
  void add(std::string_view key, std::span<const Record::Part> parts);
  void add(std::string_view key, std::initializer_list<Record::Part> parts) {
    add(key, std::span<const Record::Part>(parts.begin(), parts.size()));
  }

  /// Completes the last shard. @return the shards' paths. @throws Error naming the shard; ConfigError without a sample.
  const std::vector<std::string>& finish();

  int64_t samples() const;
  /// Of the shards that are complete.
  int64_t bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace saturate::data
