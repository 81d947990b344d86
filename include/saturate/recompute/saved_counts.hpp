// SPDX-License-Identifier: Apache-2.0
// What became of the tensors that forward saves for backward, under Offload and CompressSaved.
#pragma once

#include <cstdint>

namespace saturate {

/// Since the policy was made, all passes together. Parameters, buffers and views of them are in none of the numbers:
/// they stay where they are. A tensor that is saved twice, and views of one storage, are one.
struct SavedCounts {
  int64_t moved_tensors = 0;  ///< stored elsewhere, or in fewer bytes
  int64_t moved_bytes = 0;    ///< what these held where they were
  int64_t kept_tensors = 0;   ///< left alone: too small, or of a kind that is not moved; each save is one
  int64_t kept_bytes = 0;     ///< what these hold
  int64_t largest_kept = 0;   ///< bytes of the largest of them
  int64_t stored_bytes = 0;   ///< what the moved ones hold now where they went
  int64_t peak_stored_bytes = 0;
  int64_t fetched = 0;        ///< copies back that were started
  int64_t fetched_ahead = 0;  ///< of those, started before backward asked for the tensor
};

}  // namespace saturate
