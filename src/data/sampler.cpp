// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/sampler.hpp"

#include "saturate/data/sample_at.hpp"
#include "saturate/error.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

namespace saturate::data {
std::vector<int64_t> epoch_order(int64_t size, bool shuffle, uint64_t seed, int64_t epoch) {
  if (size < 0) throw ConfigError("epoch_order: size is " + std::to_string(size) + "; it counts samples, 0 or more");
  if (epoch < 0) throw ConfigError("epoch_order: epoch is " + std::to_string(epoch) + "; epochs count from 0");
  std::vector<int64_t> order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), int64_t{0});
  if (!shuffle) return order;
  SampleRandom random(seed, static_cast<uint64_t>(epoch));
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

ShardShuffledSampler::ShardShuffledSampler(std::vector<int64_t> shard_sizes, int64_t buffer)
    : shard_sizes_(std::move(shard_sizes)), buffer_(buffer) {
  if (buffer < 1) {
    throw ConfigError("ShardShuffledSampler: buffer is " + std::to_string(buffer) +
                      "; it counts the samples that the next one is drawn from, 1 or more");
  }
  for (const int64_t size : shard_sizes_) {
    if (size < 0) throw ConfigError("ShardShuffledSampler: a shard of " + std::to_string(size) + " samples");
  }
}

std::string ShardShuffledSampler::name() const { return "shard_shuffled " + std::to_string(buffer_); }

std::vector<int64_t> ShardShuffledSampler::order(int64_t size, uint64_t seed, int64_t epoch) const {
  std::vector<int64_t> starts;
  int64_t total = 0;
  for (const int64_t shard : shard_sizes_) {
    starts.push_back(total);
    total += shard;
  }
  if (total != size) {
    throw ConfigError("ShardShuffledSampler: its shards hold " + std::to_string(total) + " samples, the source holds " +
                      std::to_string(size));
  }
  std::vector<int64_t> order;
  order.reserve(static_cast<std::size_t>(size));
  for (const int64_t shard : epoch_order(static_cast<int64_t>(shard_sizes_.size()), true, seed, epoch)) {
    const auto s = static_cast<std::size_t>(shard);
    for (int64_t k = 0; k < shard_sizes_[s]; ++k) order.push_back(starts[s] + k);
  }
  // The buffer holds what is next to come; a sample is drawn from it and swapped to the front, so it needs no memory.
  SampleRandom random(~seed, static_cast<uint64_t>(epoch));
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::size_t held = std::min<std::size_t>(static_cast<std::size_t>(buffer_), order.size() - i);
    std::swap(order[i], order[i + random.below(held)]);
  }
  return order;
}

}  // namespace saturate::data
