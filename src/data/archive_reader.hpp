// SPDX-License-Identifier: Apache-2.0
// The members of one archive in order, through libarchive.
#pragma once

#include "file_stamp.hpp"
#include "saturate/error.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

struct archive;

namespace saturate::data::detail {

/// A regular file in an archive.
struct Member {
  std::string path;     ///< the bytes of the archive, whatever the locale
  uint64_t size = 0;    ///< bytes, as the header says
  uint64_t offset = 0;  ///< of its first byte, in the uncompressed archive
};

/// The archive cannot be read on; the members before this place are good. "<path>: <why>"
class ArchiveDamage : public DataError {
 public:
  using DataError::DataError;
};

/// Reads with read() and lseek(), never through a mapping: a file that shrinks meanwhile is an error and no signal.
class ArchiveReader {
 public:
  enum class Kind { plain_tar, any_tar };  ///< any_tar: compressed ones too

  /// @throws DataError naming the file: missing, a folder, empty, no tar, compressed although plain_tar.
  ArchiveReader(std::string path, Kind kind);
  ~ArchiveReader();
  ArchiveReader(const ArchiveReader&) = delete;
  ArchiveReader& operator=(const ArchiveReader&) = delete;

  /// The next regular file; false at the end. Folders and links are passed over.
  /// @throws ArchiveDamage where the archive cannot be read on; DataError for a member that cannot be a sample's
  /// (sparse) and for a file that is no archive at all.
  bool next(Member& member);
  /// Whether the file holds all of the member's bytes; true where only reading can tell (compressed, a pipe).
  bool complete(const Member& member) const;
  /// Appends the bytes of the member that next() gave. Call once a member. @throws ArchiveDamage
  void append_data(const Member& member, std::vector<std::byte>& out);

  const std::string& path() const { return path_; }
  /// Of the open file.
  FileStamp stamp() const;

 private:
  struct Callbacks;
  [[noreturn]] void fail(const std::string& why) const;
  [[noreturn]] void damaged() const;
  void open_file(Kind kind);
  void open_archive(Kind kind);
  void finish_member();
  [[noreturn]] void refuse_sparse() const;

  std::string path_;
  int file_ = -1;
  FileStamp stamp_;
  std::vector<char> block_;
  int read_error_ = 0;
  ::archive* archive_ = nullptr;
  Member current_;
  bool in_member_ = false;   // its data may still lie before us
  bool contiguous_ = false;  // ... and must lie there in one piece
  bool plain_ = false;       // an uncompressed file: offsets are the file's
  bool any_ = false;         // a member of any kind has been seen: it is a tar
};

}  // namespace saturate::data::detail
