// SPDX-License-Identifier: Apache-2.0
// "out/train-%06d.tar": the names of shards that are written.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace saturate::data::detail {

class ShardName {
 public:
  /// @throws ConfigError unless the pattern holds one %d, with or without a width, in its last component.
  explicit ShardName(std::string pattern);
  std::string of(int64_t number) const;
  /// The numbers that files of such a name have, ascending.
  std::vector<int64_t> existing() const;

 private:
  std::string folder_;  // with its slash, or empty
  std::string before_, after_;
  std::size_t width_ = 0;
  char fill_ = ' ';
};

}  // namespace saturate::data::detail
