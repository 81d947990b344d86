// SPDX-License-Identifier: Apache-2.0
// Stands in for crop_flip_normalize.cu where there is no nvcc.
#include "crop_flip_normalize_kernels.hpp"

namespace saturate::data::detail {

bool has_crop_flip_normalize_cuda() noexcept { return false; }

const char* crop_flip_normalize_cuda(const uint8_t*, float*, const CropJob&, const CropPlace*, int64_t,
                                     void*) noexcept {
  return "saturate was built without nvcc, so CropFlipNormalize has no CUDA kernel; decode to float in place of uint8, "
         "or build with the CUDA Toolkit";
}

}  // namespace saturate::data::detail
