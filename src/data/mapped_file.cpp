// SPDX-License-Identifier: Apache-2.0
#include "mapped_file.hpp"

#include "saturate/error.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace saturate::data::detail {
namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& why) { throw DataError(path + ": " + why); }

std::string reason() { return std::strerror(errno); }

int64_t size_of(int descriptor, const std::string& path) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) refuse(path, "cannot be examined: " + reason());
  if (S_ISDIR(status.st_mode)) refuse(path, "is a folder; name the file");
  if (!S_ISREG(status.st_mode)) refuse(path, "is no regular file, so it cannot be mapped");
  return status.st_size;
}

/// Closes what a constructor that throws has opened.
struct OpenFile {
  int value;
  ~OpenFile() {
    if (value >= 0) ::close(value);
  }
};

}  // namespace

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  // Not blocking: opening a pipe would wait for somebody to write into it.
  OpenFile file{::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.value < 0) refuse(path_, errno == ENOENT ? "does not exist" : "cannot be opened: " + reason());
  size_ = size_of(file.value, path_);
  if (size_ == 0) refuse(path_, "is empty");
  void* mapped = ::mmap(nullptr, static_cast<std::size_t>(size_), PROT_READ, MAP_SHARED, file.value, 0);
  if (mapped == MAP_FAILED) refuse(path_, "cannot be mapped: " + reason());
  begin_ = static_cast<const std::byte*>(mapped);
  descriptor_ = std::exchange(file.value, -1);
}

MappedFile::~MappedFile() {
  ::munmap(const_cast<std::byte*>(begin_), static_cast<std::size_t>(size_));
  ::close(descriptor_);
}

void MappedFile::require(int64_t end) const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) refuse(path_, "cannot be examined: " + reason());
  if (status.st_size >= end) return;
  refuse(path_, "was made shorter while it was in use: it had " + std::to_string(size_) + " bytes, now " +
                    std::to_string(status.st_size) + ", and byte " + std::to_string(end - 1) + " is wanted");
}

}  // namespace saturate::data::detail
