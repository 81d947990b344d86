// SPDX-License-Identifier: Apache-2.0
// Open files, shared by all threads, a bounded number of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace saturate::data::detail {

/// Closed when the last one that reads from it is done.
class Descriptor {
 public:
  explicit Descriptor(int file) : file_(file) {}
  ~Descriptor();
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return file_; }

 private:
  int file_;
};

class DescriptorCache {
 public:
  DescriptorCache(std::size_t files, std::size_t limit) : slots_(files), limit_(limit) {}

  /// Of file number `file`, at `path`; opened when it is not. Beyond the limit the one unused for longest is closed.
  /// Gives nullptr, and errno, where it cannot be opened.
  std::shared_ptr<const Descriptor> get(std::size_t file, const std::string& path);

 private:
  struct Slot {
    std::shared_ptr<const Descriptor> descriptor;
    uint64_t used = 0;
  };
  void close_oldest();

  std::mutex mutex_;
  std::vector<Slot> slots_;
  std::vector<std::size_t> open_;
  std::size_t limit_;
  uint64_t clock_ = 0;
};

}  // namespace saturate::data::detail
