// SPDX-License-Identifier: Apache-2.0
// A file that is there as a whole or not at all.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace saturate::data::detail {

/// Writes "<path>.tmp.<process>.<number>" and renames it on commit(); without one the temporary file goes away again.
/// After a kill it stays, under a name that no list of shards and no index has.
/// Everything here throws Error naming the path.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  /// On disk, under its temporary name: a reader may look at it before it is committed.
  void sync();
  /// On disk, under its name.
  void commit();

  const std::string& temporary() const { return temporary_; }

 private:
  [[noreturn]] void fail(int reason) const;
  std::string path_, temporary_;
  int file_ = -1;
  bool committed_ = false;
};

}  // namespace saturate::data::detail
