// SPDX-License-Identifier: Apache-2.0
// CUDA twin of crop_flip_normalize_cpu in crop_flip_normalize.cpp.
#include "crop_flip_normalize_kernels.hpp"

#include <cuda_runtime.h>

namespace saturate::data::detail {
namespace {

constexpr int lanes = 32, rows_at_once = 8;
constexpr int64_t blocks_wanted = 132 * 16;  // fills a large device
constexpr int64_t places_at_once = 512;      // arguments of a kernel are at most 4 KiB

struct Places {
  CropPlace at[places_at_once];
};
static_assert(sizeof(Places) + sizeof(CropJob) + 2 * sizeof(void*) <= 4096, "arguments of one kernel");

// Correctly rounded operations, whatever flags this file is compiled with: the same bits as the CPU.
__device__ float normalized(int pixel, float mean, float std) {
  return __fdiv_rn(__fsub_rn(__fdiv_rn(static_cast<float>(pixel), 255.0f), mean), std);
}

// A block looks at one sample. There are only 256 values a channel: it computes them once. A thread's neighbours write
// neighbouring values: along the columns and channels of a row, or along the columns of a row of one channel.
__global__ void crop_flip_normalize_kernel(const uint8_t* pixels, float* values, CropJob job, Places places) {
  __shared__ float table[most_channels * 256];
  const int thread = static_cast<int>(threadIdx.y) * lanes + static_cast<int>(threadIdx.x);
  for (int i = thread; i < job.channels * 256; i += lanes * rows_at_once) {
    table[i] = normalized(i % 256, job.mean[i / 256], job.std[i / 256]);
  }
  __syncthreads();
  const CropPlace place = places.at[blockIdx.y];
  pixels += blockIdx.y * job.in.sample + place.y * job.in.row + place.x * job.in.column;
  values += blockIdx.y * job.out.sample;
  const bool interleaved = job.out.channel == 1;
  const int across = interleaved ? job.width * job.channels : job.width;
  const int rows = interleaved ? job.height : job.height * job.channels;
  for (int row = static_cast<int>(blockIdx.x) * rows_at_once + static_cast<int>(threadIdx.y); row < rows;
       row += static_cast<int>(gridDim.x) * rows_at_once) {
    for (int i = static_cast<int>(threadIdx.x); i < across; i += lanes) {
      const int channel = interleaved ? i % job.channels : row / job.height;
      const int x = interleaved ? i / job.channels : i, y = interleaved ? row : row % job.height;
      const int from = place.flip ? job.width - 1 - x : x;
      const int pixel = pixels[channel * job.in.channel + y * job.in.row + from * job.in.column];
      values[channel * job.out.channel + y * job.out.row + x * job.out.column] = table[channel * 256 + pixel];
    }
  }
}

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

}  // namespace

bool has_crop_flip_normalize_cuda() noexcept { return true; }

const char* crop_flip_normalize_cuda(const uint8_t* pixels, float* values, const CropJob& job, const CropPlace* places,
                                     int64_t count, void* stream) noexcept {
  const int64_t rows = static_cast<int64_t>(job.height) * (job.out.channel == 1 ? 1 : job.channels);
  for (int64_t first = 0; first < count; first += places_at_once) {
    const int64_t samples = smaller(count - first, places_at_once);
    Places some;
    for (int64_t i = 0; i < samples; ++i) some.at[i] = places[first + i];
    const int64_t blocks = smaller((rows + rows_at_once - 1) / rows_at_once, 1 + blocks_wanted / samples);
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(samples));
    crop_flip_normalize_kernel<<<grid, dim3(lanes, rows_at_once), 0, static_cast<cudaStream_t>(stream)>>>(
        pixels + first * job.in.sample, values + first * job.out.sample, job, some);
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return cudaGetErrorString(error);
  }
  return nullptr;
}

}  // namespace saturate::data::detail
