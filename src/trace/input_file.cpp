// SPDX-License-Identifier: Apache-2.0
#include "input_file.hpp"

#include "saturate/error.hpp"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>

namespace saturate::trace {

InputFile::InputFile(std::string path) : path_(std::move(path)), piece_(std::size_t{1} << 18) {
  struct stat status;
  if (::stat(path_.c_str(), &status) != 0) throw DataError(path_ + " cannot be opened: " + std::strerror(errno));
  if (S_ISDIR(status.st_mode)) throw DataError(path_ + " is a folder; read_traces reads all traces of one");
  file_.reset(gzopen(path_.c_str(), "rb"));
  if (file_ == nullptr) throw DataError(path_ + " cannot be opened: " + std::strerror(errno));
  gzbuffer(file_.get(), static_cast<unsigned>(piece_.size()));
}

std::string_view InputFile::next() {
  const int bytes = gzread(file_.get(), piece_.data(), static_cast<unsigned>(piece_.size()));
  int code = Z_OK;
  const char* const message = gzerror(file_.get(), &code);
  // A file that ends inside a member says so only when what was there has been read.
  if (bytes < 0 || (code != Z_OK && code != Z_STREAM_END)) {
    throw DataError(path_ + (code == Z_BUF_ERROR ? ": its gzip data is cut off" : ": its gzip data is damaged: ") +
                    (code == Z_BUF_ERROR ? "" : message));
  }
  return {piece_.data(), static_cast<std::size_t>(bytes)};
}

}  // namespace saturate::trace
