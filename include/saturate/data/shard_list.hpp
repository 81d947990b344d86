// SPDX-License-Identifier: Apache-2.0
// The names of many shards in one pattern, as bash and WebDataset write them.
//
//   st::data::shard_list("train-{000..127}.tar");     // train-000.tar, train-001.tar, ... train-127.tar
//   st::data::shard_list("{train,extra}-{0..3}.tar");  // 8 names; the last brace runs fastest
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace saturate::data {

/// The most names that a pattern may stand for; a slip in a number would otherwise fill the memory.
inline constexpr std::size_t longest_shard_list = 1'000'000;

/// Expands `{first..last}` (whole numbers, zero padding kept as bash keeps it), `{first..last..step}`, `{a..e}` and
/// `{a,b,c}`, nested too, in the order of bash. A path without braces is a list of one. Nothing is looked up on disk.
/// A name that holds a brace itself cannot be written so: pass the paths one by one.
/// @throws ConfigError naming the pattern: empty, a brace without its partner, nothing to choose from, a range that
/// runs backwards, more than `longest_shard_list` names.
std::vector<std::string> shard_list(const std::string& pattern);

}  // namespace saturate::data
