// SPDX-License-Identifier: Apache-2.0
#include "gzip_file.hpp"

#include "saturate/error.hpp"

// Not <filesystem>: libtorch.so of the pinned release carries an incomplete copy of it, which programs would run.
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

namespace saturate::data::detail {
namespace {
constexpr std::size_t input_bytes = std::size_t{1} << 18;
constexpr int gzip_window = 15 + 16;  // the largest window; 16: a gzip header and a checksum are there
}  // namespace

GzipFile::GzipFile(std::string path) : path_(std::move(path)), file_(nullptr, &std::fclose), input_(input_bytes) {
  struct ::stat status {};
  if (::stat(path_.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) fail("is a folder; a file was expected");
    if (S_ISREG(status.st_mode)) file_bytes_ = static_cast<uint64_t>(status.st_size);  // a pipe has no size
  }
  file_.reset(std::fopen(path_.c_str(), "rb"));
  if (!file_) fail(std::string("cannot be opened: ") + std::strerror(errno));
  refill();
  gzip_ = stream_.avail_in >= 2 && input_[0] == 0x1f && input_[1] == 0x8b;
  if (gzip_ && inflateInit2(&stream_, gzip_window) != Z_OK) fail("zlib could not be started");
}

GzipFile::~GzipFile() {
  if (gzip_) inflateEnd(&stream_);
}

void GzipFile::fail(const std::string& why) const { throw DataError(path_ + ": " + why); }

uint64_t GzipFile::longest_content() const {
  if (file_bytes_ == 0) return std::numeric_limits<uint64_t>::max();
  return gzip_ ? 1032 * file_bytes_ : file_bytes_;
}

// Gives false at the end of the file.
bool GzipFile::refill() {
  if (stream_.avail_in > 0) return true;
  const std::size_t got = std::fread(input_.data(), 1, input_.size(), file_.get());
  if (got == 0 && std::ferror(file_.get())) fail(std::string("cannot be read: ") + std::strerror(errno));
  stream_.next_in = input_.data();
  stream_.avail_in = static_cast<uInt>(got);
  return got > 0;
}

std::size_t GzipFile::read(void* out, std::size_t wanted) {
  return gzip_ ? inflate_into(out, wanted) : read_plain(out, wanted);
}

std::size_t GzipFile::read_plain(void* out, std::size_t wanted) {
  std::size_t done = 0;
  while (done < wanted && refill()) {
    const std::size_t part = std::min<std::size_t>(wanted - done, stream_.avail_in);
    std::memcpy(static_cast<char*>(out) + done, stream_.next_in, part);
    stream_.next_in += part;
    stream_.avail_in -= static_cast<uInt>(part);
    done += part;
  }
  return done;
}

std::size_t GzipFile::inflate_into(void* out, std::size_t wanted) {
  std::size_t done = 0;
  while (done < wanted) {
    if (!refill()) {
      if (member_ended_) break;
      fail("the gzip data is truncated");
    }
    if (member_ended_) {  // more input: another member, or something that inflate will not take
      inflateReset(&stream_);
      member_ended_ = false;
    }
    const std::size_t part = std::min<std::size_t>(wanted - done, std::numeric_limits<uInt>::max());
    stream_.next_out = static_cast<unsigned char*>(out) + done;
    stream_.avail_out = static_cast<uInt>(part);
    const int result = inflate(&stream_, Z_NO_FLUSH);
    done += part - stream_.avail_out;
    if (result == Z_STREAM_END) {
      member_ended_ = true;
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      fail(std::string("the gzip data is damaged: ") + (stream_.msg != nullptr ? stream_.msg : zError(result)));
    }
  }
  return done;
}

}  // namespace saturate::data::detail
