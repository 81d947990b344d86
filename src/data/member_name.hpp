// SPDX-License-Identifier: Apache-2.0
// WebDataset's rules of names: which members of a tar are parts of samples, and of which.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace saturate::data::detail {

struct MemberName {
  std::string_view key;   ///< in the path
  std::string extension;  ///< lower case, without the leading dot
};

/// Splits at the first dot of the file's name: "some/path/22.0/1.1.png" is key "some/path/22.0/1", extension "1.png".
/// @return whether `path` is a part of a sample: not without a dot, hidden (".x.jpg"), or below a top folder "__x__".
bool split_member_name(std::string_view path, MemberName& name);

/// Puts the members of one shard together to samples.
class SampleRules {
 public:
  explicit SampleRules(std::string shard) : shard_(std::move(shard)) {}

  enum class Place { no_sample, new_sample, same_sample };
  /// Where the next member belongs. `name` is set unless it is no_sample.
  /// @throws DataError naming shard and member: a second part with one extension, a key that comes back.
  Place place(std::string_view path, MemberName& name);

  /// Of the last sample.
  const std::string& key() const { return key_; }

 private:
  std::string shard_;
  std::string key_;
  bool any_ = false;
  std::vector<std::string> extensions_;  // of the last sample
  // Hashes, not the keys: a shard of a million samples is in no need of a second copy of them. Two of n keys share a
  // hash with probability n * n / 2^65.
  std::unordered_set<uint64_t> seen_;
};

}  // namespace saturate::data::detail
