// SPDX-License-Identifier: Apache-2.0
// Goes through a recorded step once more, knowing what each block was for.
#pragma once

#include "memory_recorder.hpp"
#include "saturate/observe/memory_report.hpp"

namespace saturate::detail {

/// Fills in devices (but for their allocators), phases, modules and timeline.
void sweep(const MemoryRecord& record, MemoryReport& report);

}  // namespace saturate::detail
