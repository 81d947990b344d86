// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>

namespace saturate {

/// Whether an exception says that memory ran out, so that the same work in smaller parts may succeed: LibTorch's
/// c10::OutOfMemoryError, std::bad_alloc, the CPU allocator's error, and what CUDA, cuBLAS and cuDNN report of a failed
/// allocation (a message: they have no type of their own). False for anything else.
bool is_out_of_memory(const std::exception& error);

}  // namespace saturate
