// SPDX-License-Identifier: Apache-2.0
// How many targets a loss sums over. Known on the host where only shapes decide, a device tensor where values do
// (ignore_index), so that nobody has to wait for it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace saturate {

struct Count {
  double host = 0;
  at::Tensor device;  ///< 0-dim; when defined it is the whole count, and `host` is not used

  Count() = default;
  Count(double value) : host(value) {}
  Count(int64_t value) : host(static_cast<double>(value)) {}
  Count(at::Tensor value) : device(std::move(value)) {}

  bool on_host() const { return !device.defined(); }
  Count& operator+=(const Count& other);
};

/// What a loss returns that only knows its count after the forward pass: accumulated, and divided once a window.
struct SumCount {
  at::Tensor sum;  ///< 0-dim
  Count count;
};

namespace detail {
/// `scale / count` as a 0-dim tensor like `like` (dtype, device): the root gradient of backward. 0 where the count is
/// 0, so that a window with nothing to learn from stays finite. `scale` may be undefined (1).
at::Tensor root_gradient(const Count& count, const at::Tensor& scale, const at::Tensor& like);
/// 0-dim float32, 1 where the count is 0; undefined when the host knows that it is not.
at::Tensor refuse_empty(const Count& count);
}  // namespace detail

}  // namespace saturate
