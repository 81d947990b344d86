// SPDX-License-Identifier: Apache-2.0
// Time and its distribution:
//
//   Quantiles step_seconds;
//   for (...) { Stopwatch watch; step(); step_seconds.add(watch.seconds()); }
//   step_seconds.p50(), step_seconds.p95()
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace saturate {

/// Runs from its construction, on a clock that never jumps.
class Stopwatch {
 public:
  /// Seconds since the construction or the last `restart`.
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  /// Starts again from zero. @return the seconds until now, so that laps add up without a gap.
  double restart() {
    const auto now = Clock::now();
    const double elapsed = std::chrono::duration<double>(now - start_).count();
    start_ = now;
    return elapsed;
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

/// Quantiles of recorded values in bounded memory: exact up to `capacity` values, from then on those of a uniform
/// random sample of `capacity` of them (reservoir sampling, Vitter's algorithm R, with a fixed seed: the same values
/// give the same answer). Count, mean, minimum and maximum are of all values always. Not thread-safe.
class Quantiles {
 public:
  /// @param capacity values kept, 8 bytes each. @throws ConfigError when 0.
  explicit Quantiles(size_t capacity = 65536);

  /// @throws ConfigError for a value that is not finite.
  void add(double value);

  /// The value below which a share `q` of the values lies, linear between neighbours (numpy.quantile's default).
  /// @throws ConfigError when q is outside [0, 1]; StateError when nothing was added.
  double quantile(double q) const;
  double p50() const { return quantile(0.5); }
  double p95() const { return quantile(0.95); }

  /// @throws StateError when nothing was added.
  double min() const;
  double max() const;
  double mean() const;

  int64_t count() const { return count_; }
  /// Whether the quantiles are those of all values rather than of a sample.
  bool exact() const { return count_ <= static_cast<int64_t>(capacity_); }
  /// Forgets every value.
  void clear() { *this = Quantiles(capacity_); }

 private:
  void require_values() const;

  size_t capacity_;
  int64_t count_ = 0;
  double sum_ = 0;
  double min_ = 0;
  double max_ = 0;
  uint64_t random_ = 0x9E3779B97F4A7C15;
  std::vector<double> kept_;
};

}  // namespace saturate
