// SPDX-License-Identifier: Apache-2.0
#include "output_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "saturate/error.hpp"

namespace saturate::detail {
namespace {

std::string reason(int error) { return std::generic_category().message(error); }

}  // namespace

OutputFile::OutputFile(std::string who, std::filesystem::path path, Mode mode)
    : who_(std::move(who)), path_(std::move(path)) {
  std::error_code ignored;  // open() below says what is wrong, with the whole path
  if (path_.has_parent_path()) std::filesystem::create_directories(path_.parent_path(), ignored);
  const int flags = O_WRONLY | O_CREAT | O_CLOEXEC | (mode == Mode::append ? O_APPEND : O_TRUNC);
  descriptor_ = ::open(path_.c_str(), flags, 0644);
  if (descriptor_ < 0) {
    throw ConfigError(who_ + ": cannot write to '" + path_.string() + "': " + reason(errno) +
                      "; choose a path in a folder that exists or can be made, and that you may write to.");
  }
  if (mode == Mode::append) {
    const auto size = std::filesystem::file_size(path_, ignored);
    if (!ignored) size_before_ = size;  // a pipe or a device has none
  }
}

OutputFile::~OutputFile() { ::close(descriptor_); }

void OutputFile::write(std::string_view record) {
  while (!record.empty()) {
    const ssize_t written = ::write(descriptor_, record.data(), record.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      throw Error(who_ + ": writing to '" + path_.string() + "' failed: " + reason(written < 0 ? errno : EIO) +
                  "; the records before this one are in the file.");
    }
    record.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace saturate::detail
