// SPDX-License-Identifier: Apache-2.0
// CUDA twin of normalize_cpu in normalize.cpp.
#include "normalize_kernels.hpp"

#include <cuda_runtime.h>

namespace saturate::data::detail {
namespace {

constexpr int threads = 256;
constexpr int64_t most_blocks = 132 * 16;  // fills a large device; the loop in the kernel does the rest

// Correctly rounded operations, whatever flags this file is compiled with: the same bits as the CPU.
__device__ float normalized(uint8_t pixel, float mean, float std) {
  return __fdiv_rn(__fsub_rn(__fdiv_rn(static_cast<float>(pixel), 255.0f), mean), std);
}

// There are only 256 pixel values: each block computes them once, and looks them up from then on.
__global__ void normalize_kernel(const uint8_t* pixels, float* values, int64_t count, float mean, float std) {
  __shared__ float table[256];
  table[threadIdx.x] = normalized(static_cast<uint8_t>(threadIdx.x), mean, std);
  __syncthreads();
  const int64_t stride = static_cast<int64_t>(gridDim.x) * threads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x; i < count; i += stride) {
    values[i] = table[pixels[i]];
  }
}

}  // namespace

bool has_normalize_cuda() noexcept { return true; }

const char* normalize_cuda(const uint8_t* pixels, float* values, int64_t count, float mean, float std,
                           void* stream) noexcept {
  static_assert(threads == 256, "a thread for each entry of the table");
  if (count == 0) return nullptr;  // a grid without blocks is an error
  const int64_t blocks = (count + threads - 1) / threads;
  normalize_kernel<<<static_cast<unsigned>(blocks < most_blocks ? blocks : most_blocks), threads, 0,
                     static_cast<cudaStream_t>(stream)>>>(pixels, values, count, mean, std);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace saturate::data::detail
