// SPDX-License-Identifier: Apache-2.0
// The order in which an epoch visits the samples: a function of the seed and the epoch's number, and of nothing else.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace saturate::data {

/// The indices 0 .. size-1 in the order of epoch `epoch`: ascending, or with `shuffle` a uniform permutation.
///
/// The same on every machine and in every process; torch's generators are neither read nor advanced, so dropout and
/// other loaders make no difference. xoshiro256++ (Blackman, Vigna), seeded through SplitMix64, drives a Fisher-Yates
/// shuffle with Lemire's unbiased bounded numbers.
/// @throws ConfigError when size or epoch is negative.
std::vector<int64_t> epoch_order(int64_t size, bool shuffle, uint64_t seed, int64_t epoch);

/// The sequence of samples that an epoch visits, over all ranks. Derive for a rule of your own.
class Sampler {
 public:
  virtual ~Sampler() = default;
  /// Samples an epoch of a source of `size` samples has; the same for every epoch.
  virtual int64_t length(int64_t size) const = 0;
  /// Which they are: `length(size)` numbers in [0, size), a function of size, seed and epoch, and of nothing else.
  virtual std::vector<int64_t> order(int64_t size, uint64_t seed, int64_t epoch) const = 0;
  /// For messages and saved states: a state of another sampler is refused.
  virtual std::string name() const = 0;
};

/// 0, 1, 2, ...
class SequentialSampler final : public Sampler {
 public:
  int64_t length(int64_t size) const override { return size; }
  std::vector<int64_t> order(int64_t size, uint64_t seed, int64_t epoch) const override {
    return epoch_order(size, false, seed, epoch);
  }
  std::string name() const override { return "sequential"; }
};

/// A uniform permutation: epoch_order(size, true, seed, epoch).
class ShuffledSampler final : public Sampler {
 public:
  int64_t length(int64_t size) const override { return size; }
  std::vector<int64_t> order(int64_t size, uint64_t seed, int64_t epoch) const override {
    return epoch_order(size, true, seed, epoch);
  }
  std::string name() const override { return "shuffled"; }
};

/// For shards on disks that are slow to jump on: the shards in a random order, each read from its beginning, through a
/// buffer from which the next sample is drawn. Reads stay within a few shards; the shuffle is as good as the buffer is
/// large against a shard.
class ShardShuffledSampler final : public Sampler {
 public:
  /// @param shard_sizes samples of each shard (RecordSource::shard_sizes)  @param buffer samples, not less than 1
  /// @throws ConfigError when a size is negative or buffer < 1.
  ShardShuffledSampler(std::vector<int64_t> shard_sizes, int64_t buffer);
  int64_t length(int64_t size) const override { return size; }
  /// @throws ConfigError when the shards do not add up to `size`.
  std::vector<int64_t> order(int64_t size, uint64_t seed, int64_t epoch) const override;
  std::string name() const override;

 private:
  std::vector<int64_t> shard_sizes_;
  int64_t buffer_;
};

}  // namespace saturate::data
