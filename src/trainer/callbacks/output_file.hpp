// SPDX-License-Identifier: Apache-2.0
// A file that the writers append records to: each record is on its way to the disk when write() returns.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace saturate::detail {

class OutputFile {
 public:
  enum class Mode { truncate, append };

  /// Makes missing parent folders. `who` names the writer in messages.
  /// @throws ConfigError naming the path when it cannot be written.
  OutputFile(std::string who, std::filesystem::path path, Mode mode);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Writes all of it, in one call to the kernel where that takes it whole. @throws Error naming the path when it
  /// fails.
  void write(std::string_view record);

  const std::filesystem::path& path() const { return path_; }
  /// Bytes that were in the file before it was opened; 0 in mode truncate.
  uintmax_t size_before() const { return size_before_; }

 private:
  std::string who_;
  std::filesystem::path path_;
  uintmax_t size_before_ = 0;
  int descriptor_ = -1;
};

}  // namespace saturate::detail
