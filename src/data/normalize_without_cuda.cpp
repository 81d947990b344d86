// SPDX-License-Identifier: Apache-2.0
// Stands in for normalize.cu where there is no nvcc.
#include "normalize_kernels.hpp"

namespace saturate::data::detail {

bool has_normalize_cuda() noexcept { return false; }

const char* normalize_cuda(const uint8_t*, float*, int64_t, float, float, void*) noexcept {
  return "saturate was built without nvcc, so normalize_u8 has no CUDA kernel; normalize before the copy to the "
         "device, or "
         "build with the CUDA Toolkit";
}

}  // namespace saturate::data::detail
