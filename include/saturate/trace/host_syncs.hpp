// SPDX-License-Identifier: Apache-2.0
// Where the host waits for the device inside of a step, and for how long:
//
//   const HostSyncs syncs = host_syncs(timeline);
//   CHECK(over_budget(syncs, 0) == "");   // in a test: nobody has put an item() into the step
#pragma once

#include "saturate/trace/timeline.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace saturate {

/// Waits of one kind from one place, in all steps.
struct HostSync {
  std::string call;    ///< "aten::item", "cudaStreamSynchronize"
  std::string caller;  ///< the range around it (other than the step's own), else the operator; empty: the step itself
  int64_t count = 0;
  int64_t ns = 0;
};

struct HostSyncs {
  std::vector<HostSync> rows;     ///< the longest together first
  std::vector<int64_t> per_step;  ///< how many, parallel to Timeline::steps
  std::vector<TraceStep> steps;
};

/// Calls that wait (cudaDeviceSynchronize, cudaStreamSynchronize, cudaEventSynchronize, a blocking cudaMemcpy, and
/// their names in the driver's interface) and operators that read a value on the host (item, is_nonzero, equal) or need
/// one for their result's shape (nonzero, masked_select, unique). One inside of another counts once, by the outer name.
/// On the CPU such operators wait for nothing, but would on a GPU. Reads of a fused optimizer kernel (`aten::_fused_*`,
/// on the CPU only) are left out, as OpCounter does. What lies outside of all steps is left out.
HostSyncs host_syncs(const Timeline& timeline);

/// Which step has more than `per_step` waits, and who made them; empty: none has.
std::string over_budget(const HostSyncs& syncs, int64_t per_step);

}  // namespace saturate
