// SPDX-License-Identifier: Apache-2.0
// Samples in uncompressed tar files, in WebDataset's convention, read in any order.
//
//   auto shards = std::make_shared<st::data::TarShards>("train-{000..127}.tar");
//   // train-000.tar: dogs/1.jpg dogs/1.cls dogs/2.jpg dogs/2.cls ...   sample "dogs/1" has the parts "jpg" and "cls"
#pragma once

#include "saturate/data/record_source.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace saturate::data {

struct TarShardsOptions {
  /// Keep the index of each shard beside it, as "<shard>.index", so that the next program need not make it again.
  /// A folder that cannot be written is a warning; the index is then in memory alone.
  bool keep_index = true;
  /// Threads that make missing indexes; 0: as many as there are cores, at most 8.
  int threads = 0;
  /// Shards whose files are open at the same time, at least 1.
  int open_files = 256;
};

/// A sample is what WebDataset makes of it: consecutive members whose paths are equal up to the first dot of the file's
/// name (the key); the rest of the name, in lower case, is the part's extension: "some/path/22.0/1.1.png" is part
/// "1.png" of "some/path/22.0/1". Passed over: hidden files, names without a dot, "__meta__" names at the top, all but
/// regular files. One key in two shards makes two samples.
///
/// Random access comes from an index: made by reading the headers at the first use of a shard, and made again when the
/// shard has another size or time of change. About 48 bytes a sample, shared by all copies and threads.
///
/// A shard that is cut or damaged gives every sample before that place; the sample at that place stays in the numbering
/// and throws when it is read. Such an index is not kept.
class TarShards final : public RecordSource {
 public:
  /// @param pattern one path or a brace list (shard_list.hpp)
  /// @throws ConfigError for a pattern or an option that cannot work.
  /// @throws DataError naming the shard (and the member): missing, empty, no tar, compressed (read it with TarStream),
  /// without samples, sparse members, two parts of a sample with one extension, a key that comes back after another
  /// one.
  explicit TarShards(const std::string& pattern, TarShardsOptions options = {});
  /// @param paths as they are, without brace lists
  explicit TarShards(std::vector<std::string> paths, TarShardsOptions options = {});

  int64_t size() const override;
  /// @throws DataError naming shard and sample: it lies in a damaged place, the shard has vanished, shrunk or changed.
  void read(int64_t index, Record& out) const override;
  /// "train-000.tar, sample 'dogs/1'"
  std::string describe(int64_t index) const override;
  std::vector<int64_t> shard_sizes() const override;

  /// Of sample `index`: "dogs/1".
  std::string key(int64_t index) const;
  const std::vector<std::string>& paths() const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace saturate::data
