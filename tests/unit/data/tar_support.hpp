// SPDX-License-Identifier: Apache-2.0
// Folders that go away again, and tars put together byte by byte: what a test reads was not written by what it tests.
#pragma once

#include "saturate/data/record_source.hpp"

#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace saturate::test {

class TempFolder {
 public:
  TempFolder() {
    const char* const base = std::getenv("TMPDIR");
    std::string pattern = std::string(base != nullptr ? base : "/tmp") + "/saturate-test-XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = pattern;
  }
  ~TempFolder() {
    ::nftw(
        path_.c_str(), [](const char* path, const struct ::stat*, int, struct ::FTW*) { return std::remove(path); }, 16,
        FTW_DEPTH | FTW_PHYS);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::string make_folder(const std::string& path) {
  ::mkdir(path.c_str(), 0777);
  return path;
}

inline std::string write_file(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

using Members = std::vector<std::pair<std::string, std::string>>;

/// A ustar header and the content, padded.
inline std::string tar_member(const std::string& name, const std::string& content, char type = '0') {
  std::string header(512, '\0');
  header.replace(0, name.size(), name);
  header.replace(100, 8, std::string("0000644\0", 8));
  header.replace(108, 16,
                 std::string("0000000\0"
                             "0000000\0",
                             16));
  char size[13];
  std::snprintf(size, sizeof size, "%011o", static_cast<unsigned>(content.size()));
  header.replace(124, 11, size);
  header.replace(136, 11, "00000000000");
  header[156] = type;
  header.replace(257, 8,
                 std::string("ustar\0"
                             "00",
                             8));
  header.replace(148, 8, std::string(8, ' '));
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  char text[8];
  std::snprintf(text, sizeof text, "%06o", sum);
  header.replace(148, 8, std::string(text) + std::string("\0 ", 2));
  return header + content + std::string((512 - content.size() % 512) % 512, '\0');
}

inline const std::string end_blocks(1024, '\0');

inline std::string tar(const Members& members) {
  std::string bytes;
  for (const auto& [name, content] : members) bytes += tar_member(name, content);
  return bytes + end_blocks;
}

using Parts = std::map<std::string, std::string>;

inline Parts parts_of(const data::Record& record) {
  Parts parts;
  for (const auto& part : record.parts) {
    parts.emplace(part.extension, std::string(reinterpret_cast<const char*>(part.bytes.data()), part.bytes.size()));
  }
  return parts;
}

/// What `work` throws, or "nothing thrown".
template <class Error, class Work>
std::string message_of(Work work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing thrown";
}

}  // namespace saturate::test
