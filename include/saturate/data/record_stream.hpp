// SPDX-License-Identifier: Apache-2.0
// Records that come one after the other, without an index: pipes, compressed tars, shards read once.
#pragma once

#include "saturate/data/record_source.hpp"

#include <cstdint>
#include <memory>
#include <string>

namespace saturate::data {

/// Which part of the stream, in which order.
struct StreamPart {
  uint64_t seed = 0;
  int64_t epoch = 0;
  int64_t rank = 0;  ///< of `ranks` that share the stream
  int64_t ranks = 1;
};

/// One pass. Used by one thread at a time.
class RecordStream {
 public:
  virtual ~RecordStream() = default;
  /// The next record, and where it comes from (for messages); false at the end.
  /// @throws DataError naming the file. After that the stream is at its end.
  virtual bool next(Record& out, std::string& where) = 0;
};

class RecordStreamSource {
 public:
  virtual ~RecordStreamSource() = default;
  virtual std::unique_ptr<RecordStream> open(const StreamPart& part) const = 0;
};

}  // namespace saturate::data
