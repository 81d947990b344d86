// SPDX-License-Identifier: Apache-2.0
#include "write_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "saturate/error.hpp"

namespace saturate::audit {
namespace {

bool write_all(int file, std::string_view content) {
  while (!content.empty()) {
    const ssize_t written = ::write(file, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    content.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

[[noreturn]] void fail(const std::string& path, int reason) {
  throw Error("cannot write " + path + ": " + std::strerror(reason) +
              "; check that its folder exists, is writable and has room");
}

}  // namespace

void write_file(const std::string& path, std::string_view content) {
  const std::string temporary = path + ".tmp." + std::to_string(::getpid());
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) fail(path, errno);
  // Each step's errno is kept before the clean-up can overwrite it.
  int reason = write_all(file, content) && ::fsync(file) == 0 ? 0 : errno;
  if (::close(file) != 0 && reason == 0) reason = errno;
  if (reason == 0 && std::rename(temporary.c_str(), path.c_str()) != 0) reason = errno;
  if (reason == 0) return;
  ::unlink(temporary.c_str());
  fail(path, reason);
}

}  // namespace saturate::audit
