// SPDX-License-Identifier: Apache-2.0
// A file's content, plain or gzip, piece by piece.
#pragma once

#include <zlib.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace saturate::trace {

class InputFile {
 public:
  /// @throws DataError it cannot be opened.
  explicit InputFile(std::string path);

  /// The next piece; empty: there is no more. Good until the next call. @throws DataError it cannot be read, or its
  /// gzip data is damaged or cut off.
  std::string_view next();

 private:
  struct Close {
    void operator()(gzFile_s* file) const { gzclose_r(file); }
  };
  std::string path_;
  std::unique_ptr<gzFile_s, Close> file_;
  std::vector<char> piece_;
};

}  // namespace saturate::trace
