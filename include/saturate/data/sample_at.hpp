// SPDX-License-Identifier: Apache-2.0
// Which sample is read, for which place of which epoch, and the random numbers that belong to that place.
//
//   void read(const st::data::SampleAt& at, std::array<std::byte*, fields> out) const {
//     st::data::SampleRandom random(at);
//     const bool flip = random.uniform() < 0.5;  // the same whatever thread, worker or rank reads the sample
//     ...
#pragma once

#include <cstdint>

namespace saturate::data {

/// A sample's number, and where in the loader's sequence it is wanted. Converts from and to the number, so a source
/// without random augmentation takes an int64_t in its place.
struct SampleAt {
  SampleAt(int64_t sample) : index(sample), position(sample) {}  // NOLINT: meant to convert
  SampleAt(int64_t sample, uint64_t loader_seed, int64_t in_epoch, int64_t at_position)
      : index(sample), seed(loader_seed), epoch(in_epoch), position(at_position) {}
  operator int64_t() const { return index; }  // NOLINT: meant to convert

  int64_t index;      ///< in the source
  uint64_t seed = 0;  ///< LoaderOptions::seed
  int64_t epoch = 0;  ///< counts from 0
  int64_t position;   ///< in the epoch's sequence, over all ranks; a sample may come twice, a position does not
};

/// xoshiro256++ (Blackman, Vigna), seeded through SplitMix64. Small and quick to make: one a sample.
class SampleRandom {
 public:
  /// A function of (seed, epoch, position), and of nothing else: not of the sample, the worker or the rank.
  explicit SampleRandom(const SampleAt& at);
  /// A stream of its own for each pair.
  SampleRandom(uint64_t seed, uint64_t stream);

  /// 64 random bits.
  uint64_t next();
  /// Uniform in [0, bound), bound > 0, without bias (Lemire).
  uint64_t below(uint64_t bound);
  /// Uniform in [0, 1), 53 bits.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  /// Uniform in [low, high).
  double uniform(double low, double high) { return low + (high - low) * uniform(); }

 private:
  uint64_t words_[4];
};

}  // namespace saturate::data
