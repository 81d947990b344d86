// SPDX-License-Identifier: Apache-2.0
#include "archive_reader.hpp"

#include "archive_locale.hpp"
#include "saturate/log.hpp"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

namespace saturate::data::detail {
namespace {

// Small where members are passed over, so that little is read of what is not wanted.
constexpr std::size_t index_block = 8 << 10, data_block = 256 << 10;
constexpr uint64_t tar_block = 512;

uint64_t padded(uint64_t bytes) { return (bytes + tar_block - 1) / tar_block * tar_block; }

const char* compression_of(std::string_view start) {
  using namespace std::string_view_literals;
  const std::pair<std::string_view, const char*> magics[] = {{"\x1f\x8b"sv, "gzip"},
                                                             {"\x28\xb5\x2f\xfd"sv, "zstd"},
                                                             {"\xfd\x37zXZ\0"sv, "xz"},
                                                             {"BZh"sv, "bzip2"},
                                                             {"\x04\x22\x4d\x18"sv, "lz4"}};
  for (const auto& [magic, name] : magics) {
    if (start.starts_with(magic)) return name;
  }
  return nullptr;
}

}  // namespace

struct ArchiveReader::Callbacks {
  static la_ssize_t read(::archive* archive, void* data, const void** out) {
    auto& self = *static_cast<ArchiveReader*>(data);
    ssize_t got;
    do {
      got = ::read(self.file_, self.block_.data(), self.block_.size());
    } while (got < 0 && errno == EINTR);
    if (got < 0) {
      self.read_error_ = errno;
      archive_set_error(archive, errno, "cannot be read");
    }
    *out = self.block_.data();
    return got;
  }

  // Not past the end of the file: what is missing there is libarchive's to notice.
  static la_int64_t skip(::archive*, void* data, la_int64_t wanted) {
    auto& self = *static_cast<ArchiveReader*>(data);
    const off_t here = ::lseek(self.file_, 0, SEEK_CUR);
    if (here < 0) return 0;  // a pipe: libarchive reads in place of skipping
    const auto there = static_cast<la_int64_t>(self.stamp_.bytes) - here;
    const la_int64_t step = std::clamp<la_int64_t>(there, 0, wanted);
    return ::lseek(self.file_, step, SEEK_CUR) < 0 ? 0 : step;
  }
};

ArchiveReader::ArchiveReader(std::string path, Kind kind) : path_(std::move(path)) {
  try {
    open_file(kind);
    open_archive(kind);
  } catch (...) {
    if (archive_ != nullptr) archive_read_free(archive_);
    if (file_ >= 0) ::close(file_);
    throw;
  }
}

ArchiveReader::~ArchiveReader() {
  archive_read_free(archive_);
  ::close(file_);
}

void ArchiveReader::fail(const std::string& why) const { throw DataError(path_ + ": " + why); }

void ArchiveReader::damaged() const {
  if (read_error_ != 0) fail(std::string("cannot be read: ") + std::strerror(read_error_));
  const char* const reason = archive_error_string(archive_);
  const std::string text = reason != nullptr ? reason : "the data ends early";
  if (!any_) fail("is no tar archive (" + text + ")");
  throw ArchiveDamage(path_ + ": the archive is damaged or cut off at byte " +
                      std::to_string(archive_filter_bytes(archive_, 0)) + " (" + text + ")");
}

void ArchiveReader::open_file(Kind kind) {
  file_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (file_ < 0) fail(std::string("cannot be opened: ") + std::strerror(errno));
  struct ::stat status {};
  if (::fstat(file_, &status) != 0) fail(std::string("cannot be read: ") + std::strerror(errno));
  if (S_ISDIR(status.st_mode)) fail("is a folder; a tar file was expected");
  if (!S_ISREG(status.st_mode)) {
    if (kind == Kind::plain_tar) fail("is no regular file, so it has no index; read it with TarStream");
    return;
  }
  stamp_ = FileStamp::of(status);
  if (stamp_.bytes == 0) fail("is empty; a tar file was expected");
  char start[8] = {};
  const ssize_t got = ::pread(file_, start, sizeof start, 0);
  if (kind == Kind::any_tar || got <= 0) return;
  if (const char* const compression = compression_of({start, static_cast<std::size_t>(got)})) {
    fail(std::string("is compressed (") + compression +
         "), so its samples cannot be read one by one; unpack it, or read it in order with TarStream");
  }
}

void ArchiveReader::open_archive(Kind kind) {
  const ArchiveLocale locale(ArchiveLocale::For::reading);
  block_.resize(kind == Kind::plain_tar ? index_block : data_block);
  archive_ = archive_read_new();
  if (archive_ == nullptr) throw std::bad_alloc();
  archive_read_support_format_tar(archive_);
  if (kind == Kind::any_tar) {
    // By name: `all` would also start programs that it finds on the machine.
    archive_read_support_filter_gzip(archive_);
    archive_read_support_filter_bzip2(archive_);
    archive_read_support_filter_xz(archive_);
    archive_read_support_filter_zstd(archive_);
    archive_read_support_filter_lz4(archive_);
  }
  archive_read_set_read_callback(archive_, &Callbacks::read);
  archive_read_set_skip_callback(archive_, &Callbacks::skip);
  archive_read_set_callback_data(archive_, this);
  if (archive_read_open1(archive_) != ARCHIVE_OK) damaged();
  plain_ = stamp_.bytes > 0 && archive_filter_code(archive_, 0) == ARCHIVE_FILTER_NONE;
}

bool ArchiveReader::next(Member& member) {
  const ArchiveLocale locale(ArchiveLocale::For::reading);
  for (;;) {
    finish_member();
    ::archive_entry* entry = nullptr;
    const int result = archive_read_next_header(archive_, &entry);
    if (result == ARCHIVE_EOF) return false;
    // A warning is about what does not matter here: owners, times, the locale.
    if (result != ARCHIVE_OK && result != ARCHIVE_WARN) damaged();
    any_ = true;
    in_member_ = true;
    const char* const name = archive_entry_pathname(entry);
    const la_int64_t size = archive_entry_size(entry);
    if (name == nullptr || size < 0) damaged();
    current_ = {name, static_cast<uint64_t>(size), static_cast<uint64_t>(archive_filter_bytes(archive_, 0))};
    contiguous_ = archive_entry_hardlink(entry) == nullptr && archive_entry_filetype(entry) == AE_IFREG;
    if (!contiguous_) continue;
    if (archive_entry_sparse_count(entry) > 0) refuse_sparse();
    member = current_;
    return true;
  }
}

void ArchiveReader::finish_member() {
  if (!in_member_) return;
  in_member_ = false;
  const uint64_t next = current_.offset + padded(current_.size);
  if (plain_ && contiguous_ && complete(current_) && next > stamp_.bytes) {
    throw ArchiveDamage(path_ + ": the file is cut off after the bytes of '" + current_.path +
                        "', within the block that they lie in; more members may be missing");
  }
  // Some writers leave out the two blocks of zeros at the end; a file that was cut just here looks the same.
  if (plain_ && contiguous_ && next == stamp_.bytes) {
    log::warn_once("tar.end " + path_, path_ + ": has no end-of-archive mark after '" + current_.path +
                                           "'; if it was cut there, samples are missing");
  }
  if (archive_read_data_skip(archive_) != ARCHIVE_OK) damaged();
  const auto end = static_cast<uint64_t>(archive_filter_bytes(archive_, 0));
  if (contiguous_ && end != current_.offset + padded(current_.size)) refuse_sparse();
}

void ArchiveReader::refuse_sparse() const {
  fail("'" + current_.path + "' is stored as a sparse file, in pieces; pack the shard without --sparse");
}

bool ArchiveReader::complete(const Member& member) const {
  if (!plain_) return true;
  return member.offset <= stamp_.bytes && member.size <= stamp_.bytes - member.offset;
}

void ArchiveReader::append_data(const Member& member, std::vector<std::byte>& out) {
  constexpr uint64_t step = 1 << 20;  // a damaged header can promise any size: memory grows with what is really there
  const std::size_t begin = out.size();
  uint64_t done = 0;
  while (done < member.size) {
    const auto wanted = static_cast<std::size_t>(std::min(member.size - done, std::max(step, done)));
    out.resize(begin + static_cast<std::size_t>(done) + wanted);
    const la_ssize_t got = archive_read_data(archive_, out.data() + begin + done, wanted);
    if (got <= 0) damaged();
    done += static_cast<uint64_t>(got);
  }
  out.resize(begin + static_cast<std::size_t>(done));
}

FileStamp ArchiveReader::stamp() const {
  struct ::stat status {};
  if (::fstat(file_, &status) != 0) fail(std::string("cannot be read: ") + std::strerror(errno));
  return FileStamp::of(status);
}

}  // namespace saturate::data::detail
