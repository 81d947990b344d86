// SPDX-License-Identifier: Apache-2.0
// Writes a trace as PyTorch's profiler does: Chrome's trace format, for ui.perfetto.dev, chrome://tracing, TensorBoard
// and read_trace.
#pragma once

#include "saturate/trace/trace.hpp"

#include <string>

namespace saturate {

/// With gzip when the path ends in ".gz". Times are microseconds with three decimals, so nothing of them is lost;
/// read_trace gives the same events again (of a grid and a block only the products are known: [n,1,1]). The file
/// appears whole or not at all; one that was there is replaced.
/// @throws Error naming the path when it cannot be written.
void write_trace(const Trace& trace, const std::string& path);

}  // namespace saturate
