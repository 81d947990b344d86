// SPDX-License-Identifier: Apache-2.0
#include "saturate/trainer/out_of_memory.hpp"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <new>
#include <string_view>

namespace saturate {
namespace {

// As LibTorch and the libraries below it word them. Whole phrases: a message of somebody else that has the words "out
// of memory" in it must not start the work again.
constexpr std::array<std::string_view, 12> phrases{
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "Cuda failure 2 'out of memory'",  // NCCL
    "cudaErrorMemoryAllocation",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUSOLVER_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
};

}  // namespace

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  const auto* of_libtorch = dynamic_cast<const c10::Error*>(&error);
  const std::string_view message = of_libtorch != nullptr ? of_libtorch->what_without_backtrace() : error.what();
  return std::any_of(phrases.begin(), phrases.end(),
                     [&](std::string_view phrase) { return message.find(phrase) != std::string_view::npos; });
}

}  // namespace saturate
