// SPDX-License-Identifier: Apache-2.0
// How many threads should read, from what the loop finds each time it asks for a batch.
#pragma once

#include <cstdint>

namespace saturate::data::detail {

class WorkerCount {
 public:
  /// Begins at 1.
  explicit WorkerCount(int64_t most) : most_(most) {}

  /// The loop asks, and `ready` of the `depth` batches that may be read ahead are there. @return the threads wanted.
  /// Looks at 8 requests at a time: two that have to wait are worth a thread; after a few times 8 that find all batches
  /// ready, one thread goes. When it is missed, the next time takes twice as long.
  int64_t observe(int64_t ready, int64_t depth);
  int64_t wanted() const { return wanted_; }

 private:
  static constexpr int window = 8;
  int64_t most_;
  int64_t wanted_ = 1;
  int asked_ = 0, waited_ = 0, full_ = 0;
  int calm_ = 0;      // windows in a row in which everything was ready
  int patience_ = 4;  // of them, before a thread goes
  bool went_ = false;
};

}  // namespace saturate::data::detail
