// SPDX-License-Identifier: Apache-2.0
// A file's bytes, read where they lie in the system's cache of files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace saturate::data::detail {

/// A whole file mapped for reading. Threads may share one.
class MappedFile {
 public:
  /// @throws DataError naming the file: it does not exist, cannot be read, is a folder, is empty, cannot be mapped.
  explicit MappedFile(std::string path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  const std::byte* begin() const { return begin_; }
  /// Bytes it had when it was mapped.
  int64_t size() const { return size_; }

  /// Call before reading the bytes [0, end). A program that reads beyond the end of a file that was made shorter is
  /// killed (SIGBUS); this makes an exception of it, but for a file that shrinks in the same moment.
  /// @throws DataError naming the file when it has become shorter than that.
  void require(int64_t end) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  const std::byte* begin_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace saturate::data::detail
