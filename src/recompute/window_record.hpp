// SPDX-License-Identifier: Apache-2.0
// What was seen of memory while a window ran. Bytes are relative to its beginning.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace saturate::detail {

/// A moment at which memory was looked at.
struct MemoryEvent {
  enum class Kind {
    enter,         ///< a part's forward begins
    saved,         ///< it has saved a tensor that is dropped; later ones replace earlier ones
    leave,         ///< it ends
    replay,        ///< its second forward begins
    replay_saved,  ///< and has saved all that is needed
    replayed,
    end  ///< backward of the window is over
  };
  Kind kind;
  std::size_t visit;
  int64_t level;  ///< now
  int64_t peak;   ///< highest since the event before
};

/// A part in one forward pass.
struct Visit {
  std::size_t part;
  double seconds = 0;       ///< of its forward; 0: not timed
  int64_t bytes = 0;        ///< what it would hold more from forward to backward if it were kept, at most
  int64_t least_bytes = 0;  ///< and at least
  int64_t input_bytes = 0;  ///< what it holds as it is
};

struct WindowRecord {
  std::vector<Visit> visits;        ///< in the order of execution
  std::vector<MemoryEvent> events;  ///< in the order of time
  int64_t peak = 0;
};

}  // namespace saturate::detail
