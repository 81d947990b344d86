// SPDX-License-Identifier: Apache-2.0
// Tells whether a file is still the one that was seen before.
#pragma once

#include <sys/stat.h>

#include <cstdint>

namespace saturate::data::detail {

struct FileStamp {
  uint64_t bytes = 0;
  int64_t modified = 0;  ///< nanoseconds since 1970

  bool operator==(const FileStamp&) const = default;

  static FileStamp of(const struct ::stat& status) {
    return {static_cast<uint64_t>(status.st_size),
            int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec};
  }
};

}  // namespace saturate::data::detail
