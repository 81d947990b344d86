// SPDX-License-Identifier: Apache-2.0
// Reads what PyTorch's profiler writes: Chrome's trace format as JSON, plain or gzip, from C++ or Python.
#pragma once

#include "saturate/trace/trace.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace saturate {

struct ReadTraceOptions {
  /// Only events and flows that begin in [from_ns, to_ns) of the file's clock (TraceEvent::start_ns +
  /// Trace::origin_ns). What is outside is parsed and dropped: memory holds what is kept.
  std::optional<int64_t> from_ns, to_ns;
  bool keep_python = true;  ///< frames of the Python stack (with_stack=True), often most of a file
  bool keep_flows = true;
  /// More events than that are an error, before they fill the memory.
  int64_t max_events = 200'000'000;
};

/// The file is read once (twice for a part of the time, when its time of origin comes last), front to back, in pieces
/// of 256 KiB: memory is needed for the Trace, not for the text.
/// @throws DataError, naming the file, and the place in it where there is one: it cannot be opened, is empty, cut off,
/// damaged (JSON or gzip), or no trace; more events than max_events.
Trace read_trace(const std::string& path, const ReadTraceOptions& options = {});

/// All traces of a folder (files *.json and *.json.gz), one a rank, by rank; files without a rank keep the order of
/// their names, behind the others. @throws DataError no trace is there, or a rank comes twice.
std::vector<Trace> read_traces(const std::string& folder, const ReadTraceOptions& options = {});

}  // namespace saturate
