// SPDX-License-Identifier: Apache-2.0
// Samples of tar files read from front to end, without an index: compressed shards (gzip, bzip2, xz, zstd, lz4), pipes,
// shards that are read once.
//
//   auto stream = std::make_shared<st::data::TarStream>("train-{000..127}.tar.gz", {.shuffle_shards = true, .buffer =
//   5000});
#pragma once

#include "saturate/data/record_stream.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace saturate::data {

struct TarStreamOptions {
  bool shuffle_shards = false;  ///< the shards in a new order each epoch
  /// Samples in the shuffle buffer; 0 and 1: none, samples come as they lie in the shards. Each rank holds as many in
  /// memory, as they lie in the file.
  int64_t buffer = 0;
};

/// What is promised, in place of what an index allows (TarShards):
/// - The order is a function of the list of shards, the options, seed, epoch, rank and number of ranks, and of nothing
///   else: not of threads or speed. Another number of ranks gives another order.
/// - Shards go to the ranks in turn, after their permutation (which is the same on every rank): 3 shards over 2 ranks
///   are 2 and 1. All ranks together give every sample once; they may differ in length.
/// - With a buffer, a sample comes out at most `buffer` places early; how late is random. It is no uniform permutation.
/// - To resume, a pass is opened with the same StreamPart and read again up to the position.
///
/// What makes a sample is the same as in TarShards, and so are the errors; one in a shard comes after every complete
/// sample before it, and ends the pass.
class TarStream final : public RecordStreamSource {
 public:
  /// @param pattern one path or a brace list (shard_list.hpp)
  /// @throws ConfigError for a pattern or an option that cannot work. Files are opened by the passes.
  explicit TarStream(const std::string& pattern, TarStreamOptions options = {});
  /// @param paths as they are, without brace lists
  explicit TarStream(std::vector<std::string> paths, TarStreamOptions options = {});

  /// @throws ConfigError where there are fewer shards than ranks, or rank is not below ranks.
  std::unique_ptr<RecordStream> open(const StreamPart& part) const override;

  /// The shards of one pass, in order.
  std::vector<std::string> shards_of(const StreamPart& part) const;

 private:
  std::vector<std::string> paths_;
  TarStreamOptions options_;
};

}  // namespace saturate::data
