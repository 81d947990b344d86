// SPDX-License-Identifier: Apache-2.0
// The seam between normalize_u8 and its kernels: plain pointers, so that nvcc never sees LibTorch's headers.
#pragma once

#include <cstdint>

namespace saturate::data::detail {

/// Whether the CUDA kernel was compiled into this library.
bool has_normalize_cuda() noexcept;

/// Enqueues the kernel on `stream`, a cudaStream_t of the current device. @return nullptr, or CUDA's words on what
/// failed.
const char* normalize_cuda(const uint8_t* pixels, float* values, int64_t count, float mean, float std,
                           void* stream) noexcept;

void normalize_cpu(const uint8_t* pixels, float* values, int64_t count, float mean, float std) noexcept;

}  // namespace saturate::data::detail
