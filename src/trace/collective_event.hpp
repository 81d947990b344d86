// SPDX-License-Identifier: Apache-2.0
// Which events talk with other ranks.
#pragma once

#include "saturate/trace/trace.hpp"

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>

namespace saturate::trace {

/// A kernel of NCCL or RCCL.
inline bool is_collective_kernel(const Trace& trace, const TraceEvent& event) {
  if (event.kind != EventKind::kernel) return false;
  std::string_view name = trace.text(event.name);
  if (name.starts_with("void ")) name.remove_prefix(5);
  return name.starts_with("nccl") || name.starts_with("rccl");
}

/// Gloo's range around its own work, on whatever thread.
inline bool is_gloo_range(const Trace& trace, const TraceEvent& event) {
  return (event.kind == EventKind::annotation || event.kind == EventKind::op) &&
         std::string_view(trace.text(event.name)).starts_with("gloo:");
}

/// An operator that starts a collective, or waits for one.
inline bool is_c10d_operator(const Trace& trace, const TraceEvent& event) {
  if (event.kind != EventKind::op) return false;
  const std::string_view name = trace.text(event.name);
  return name.starts_with("c10d::") || name == "record_param_comms";
}

/// "allreduce" out of "ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)", "gloo:all_reduce", "c10d::allreduce_" or what a
/// kernel tells of itself ("_allgather_base"); the name itself if none is in it.
inline std::string collective_name(const Trace& trace, const TraceEvent& event) {
  const TraceDetails* const details = trace.details_of(event);
  const std::string& name =
      trace.text(details != nullptr && details->collective != 0 ? details->collective : event.name);
  std::string letters;
  for (const char c : name) {
    if (c == '(') break;  // arguments of a kernel's type
    if (std::isalnum(static_cast<unsigned char>(c))) {
      letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  for (const char* const known : {"allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "sendrecv",
                                  "barrier", "gather", "scatter", "reduce", "send", "recv"}) {
    if (letters.find(known) != std::string::npos) return known;
  }
  return name;
}

}  // namespace saturate::trace
