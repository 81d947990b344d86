// SPDX-License-Identifier: Apache-2.0
// How much memory a larger batch would need, from a few small ones:
//
//   const auto forecast = st::forecast_memory([&](int64_t n) { loss_of(first(batch, n)).backward(); clear(); }, {4,
//   8}); forecast.peak_bytes(128);                                      // before anything runs out of memory
//   forecast.largest_batch(st::free_memory_bytes(device) / 10 * 9);
//
// A step allocates and frees the same blocks in the same order whatever its batch size, each of a size that is a
// constant (a gradient) or grows with the samples (an activation). So every moment of the step is a line, and the peak
// of a batch size is the highest line there. One line through the peaks of small batches, which lie where the gradients
// are complete, would miss those of large ones, which lie where the last activation is.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace saturate {

/// A batch size that was tried.
struct MemoryProbe {
  int64_t samples = 0;
  int64_t peak_bytes = 0;  ///< highest above what was there before
};

class MemoryForecast {
 public:
  /// Bytes that a step of `samples` samples adds at its highest to what is there before it.
  /// @throws ConfigError `samples` is below 1.
  int64_t peak_bytes(int64_t samples) const;
  /// The most samples whose peak is at most `limit_bytes`; 0: not even one. Never more than 2^40.
  int64_t largest_batch(int64_t limit_bytes) const;

  const std::vector<MemoryProbe>& probes() const { return probes_; }
  /// Whether the probes allocated alike, so that each moment has a line. Otherwise the forecast is a line through the
  /// peaks of the two largest: a rough one, and rather too low. Larger probes, closer together, help.
  bool by_moments() const { return by_moments_; }

 private:
  friend MemoryForecast forecast_memory(const std::function<void(int64_t)>&, std::vector<int64_t>, c10::Device);
  /// Bytes at a moment: constant + per_sample n + per_square n².
  struct Moment {
    double constant = 0, per_sample = 0, per_square = 0;
    double bytes(double samples) const { return constant + samples * (per_sample + samples * per_square); }
  };
  using Timeline = std::vector<int64_t>;
  void fit(const std::vector<Timeline>& timelines);
  void fit_squares(const std::vector<Timeline>& timelines);

  std::vector<MemoryProbe> probes_;
  std::vector<Moment> moments_;
  bool by_moments_ = false;
};

/// @param probe runs forward and backward with that many samples, as a step of training does, and leaves no gradients
///   behind. It is called once without being recorded, for what a program allocates the first time only, and then once
///   a size. Same device, same dtype, one step after the other: what another thread allocates is not seen.
/// @param sizes batch sizes to try, small ones; two or three. With three, a part that grows with the square of the
/// batch
///   (all pairs of its samples) is noticed. With one, everything is taken to grow with the batch.
/// @throws ConfigError no sizes, or one below 1. What `probe` throws.
MemoryForecast forecast_memory(const std::function<void(int64_t)>& probe, std::vector<int64_t> sizes,
                               c10::Device device = c10::kCPU);

}  // namespace saturate
