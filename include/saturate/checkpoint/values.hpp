// SPDX-License-Identifier: Apache-2.0
// What a checkpoint file holds, and how it gets onto the disk and back.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

namespace saturate::checkpoint {

/// Named values of a run. Each part puts its own under a prefix of its own ("optimizer/...").
struct Values {
  std::map<std::string, at::Tensor> tensors;  ///< defined, dense; the live ones until they are written
  std::map<std::string, int64_t> integers;
  std::map<std::string, double> numbers;  ///< kept bit for bit, NaN too
  std::map<std::string, std::string> texts;

  /// Takes over all of `others`, whose values win.
  void merge(const Values& others);
  /// @throws StateError there is nothing of that name.
  const at::Tensor& tensor(const std::string& name) const;
  int64_t integer(const std::string& name) const;
  double number(const std::string& name) const;
  const std::string& text(const std::string& name) const;
};

/// Writes one file, which is there as a whole or not at all: a temporary name in the same folder, the disk, the name.
///   saturate-checkpoint 1 <stamp>\n   <archive of torch::serialize>   \nend <crc32, 8 hex digits> <bytes before, 20>\n
/// Tensors are copied to the host, and cut out of what they are views of.
/// @param stamp one word: the same in all files of one save. @throws Error naming the path when it cannot be written.
void write_file(const std::string& path, const std::string& stamp, const Values& values);

/// The stamp of a file, by its first line alone; empty when that is no checkpoint's.
std::string stamp_of(const std::string& path);

/// The archive in a file. @throws DataError naming the path: it cannot be read, is no checkpoint, one of another
/// version, or torn (its length or checksum does not fit).
std::string read_archive(const std::string& path);

/// Tensors lie on the CPU. @param path names the archive in errors. @throws DataError it cannot be understood.
Values values_in(const std::string& archive, const std::string& path);

inline Values read_file(const std::string& path) { return values_in(read_archive(path), path); }

}  // namespace saturate::checkpoint
