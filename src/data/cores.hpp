// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sched.h>

#include <cstdint>

namespace saturate::data::detail {

/// Cores that this process may use.
inline int64_t cores() {
  ::cpu_set_t set;
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

}  // namespace saturate::data::detail
