// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/normalize.hpp"

#include "normalize_kernels.hpp"
#include "saturate/error.hpp"

#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cmath>
#include <string>

namespace saturate::data {
namespace detail {

void normalize_cpu(const uint8_t* pixels, float* values, int64_t count, float mean, float std) noexcept {
  float table[256];
  for (int pixel = 0; pixel < 256; ++pixel) table[pixel] = (static_cast<float>(pixel) / 255.0f - mean) / std;
  for (int64_t i = 0; i < count; ++i) values[i] = table[pixels[i]];
}

}  // namespace detail

namespace {

void check(const at::Tensor& u8, double mean, double std) {
  if (!std::isfinite(mean)) throw ConfigError("normalize_u8: mean is " + std::to_string(mean) + "; it must be finite");
  if (!(std > 0) || !std::isfinite(std)) {
    throw ConfigError("normalize_u8: std is " + std::to_string(std) +
                      "; values are divided by it, so it must be positive");
  }
  if (!u8.defined()) throw DataError("normalize_u8: the tensor is undefined");
  const bool good = u8.scalar_type() == at::kByte && u8.layout() == at::kStrided && (u8.is_cpu() || u8.is_cuda());
  if (!good) {
    throw DataError("normalize_u8: got " + u8.toString() + " on " + u8.device().str() +
                    "; pixels are a dense uint8 tensor on the CPU or on a CUDA device");
  }
  if (u8.is_cuda() && !detail::has_normalize_cuda()) {
    throw ConfigError(detail::normalize_cuda(nullptr, nullptr, 0, 0, 1, nullptr));
  }
}

// The one place that chooses a kernel.
void dispatch(const at::Tensor& pixels, at::Tensor& values, float mean, float std) {
  const auto* from = pixels.const_data_ptr<uint8_t>();
  auto* to = values.mutable_data_ptr<float>();
  if (pixels.is_cpu()) return detail::normalize_cpu(from, to, pixels.numel(), mean, std);
  const c10::DeviceGuard guard(pixels.device());
  void* stream = c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(pixels.device()).native_handle();
  if (const char* error = detail::normalize_cuda(from, to, pixels.numel(), mean, std, stream)) {
    throw Error(std::string("normalize_u8: CUDA could not start the kernel: ") + error);
  }
}

}  // namespace

at::Tensor normalize_u8(const at::Tensor& u8, double mean, double std) {
  check(u8, mean, std);
  // Dense and of one order: channels_last pixels give channels_last values.
  const at::Tensor pixels = u8.is_non_overlapping_and_dense() ? u8 : u8.contiguous();
  at::Tensor values = at::empty_like(pixels, pixels.options().dtype(at::kFloat));
  dispatch(pixels, values, static_cast<float>(mean), static_cast<float>(std));
  return values;
}

}  // namespace saturate::data
