// SPDX-License-Identifier: Apache-2.0
#include "atomic_file.hpp"

#include "saturate/error.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace saturate::data::detail {
namespace {

// The new name reaches the disk with its folder; where folders cannot be synchronized the file itself is safe already.
void sync_folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == path.npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  const int file = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return;
  ::fsync(file);
  ::close(file);
}

}  // namespace

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  static std::atomic<unsigned> number{0};
  temporary_ = path_ + ".tmp." + std::to_string(::getpid()) + "." + std::to_string(number++);
  file_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file_ < 0) fail(errno);
}

AtomicFile::~AtomicFile() {
  if (file_ >= 0) ::close(file_);
  if (!committed_) ::unlink(temporary_.c_str());
}

void AtomicFile::fail(int reason) const {
  throw Error("cannot write " + path_ + ": " + std::strerror(reason) +
              "; check that its folder exists, is writable and has room");
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail(errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void AtomicFile::sync() {
  if (file_ < 0) return;
  int reason = ::fsync(file_) == 0 ? 0 : errno;
  if (::close(file_) != 0 && reason == 0) reason = errno;
  file_ = -1;
  if (reason != 0) fail(reason);
}

void AtomicFile::commit() {
  sync();
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail(errno);
  committed_ = true;
  sync_folder_of(path_);
}

}  // namespace saturate::data::detail
