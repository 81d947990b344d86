// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace saturate {

/// Bytes that tensors can still take. Of a GPU: free memory, and what its caching allocator holds without using it. Of
/// the CPU: the kernel's MemAvailable, or what this process's control groups leave of their limits if that is less.
/// @throws ConfigError the allocator of the device does not tell.
int64_t free_memory_bytes(c10::Device device);

}  // namespace saturate
