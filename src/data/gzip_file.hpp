// SPDX-License-Identifier: Apache-2.0
// A file, plain or gzip, read from front to back.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace saturate::data::detail {

/// zlib's gzFile takes anything behind the last member for padding and leaves it out; here it counts, as data that
/// nobody expected. Every error is a DataError that begins with the file's name.
class GzipFile {
 public:
  /// @throws DataError when it does not exist, is a folder, or cannot be opened.
  explicit GzipFile(std::string path);
  ~GzipFile();
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;

  /// Reads up to `wanted` bytes. @return how many there were; fewer only at the end. @throws DataError when damaged.
  std::size_t read(void* out, std::size_t wanted);
  /// No content can be longer than this: deflate makes at most 1032 bytes of one.
  uint64_t longest_content() const;
  /// @throws DataError "path: why".
  [[noreturn]] void fail(const std::string& why) const;

 private:
  std::size_t read_plain(void* out, std::size_t wanted);
  std::size_t inflate_into(void* out, std::size_t wanted);
  bool refill();

  std::string path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  uint64_t file_bytes_ = 0;
  std::vector<unsigned char> input_;
  z_stream stream_{};
  bool gzip_ = false;
  bool member_ended_ = false;
};

}  // namespace saturate::data::detail
