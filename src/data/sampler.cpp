// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/sampler.hpp"

#include "saturate/error.hpp"

#include <bit>
#include <numeric>
#include <string>
#include <utility>

namespace saturate::data {
namespace {

uint64_t split_mix(uint64_t& state) {
  state += 0x9e3779b97f4a7c15;
  uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

class Xoshiro256 {
 public:
  // The seed is mixed before the epoch is added: (seed + 1, epoch) and (seed, epoch + 1) have nothing in common.
  Xoshiro256(uint64_t seed, uint64_t epoch) {
    uint64_t state = seed;
    state = split_mix(state) + epoch;
    for (uint64_t& word : words_) word = split_mix(state);
  }

  uint64_t next() {
    auto& [a, b, c, d] = words_;
    const uint64_t result = std::rotl(a + d, 23) + a;
    const uint64_t t = b << 17;
    c ^= a;
    d ^= b;
    b ^= c;
    a ^= d;
    c ^= t;
    d = std::rotl(d, 45);
    return result;
  }

  /// Uniform in [0, bound), bound > 0.
  uint64_t below(uint64_t bound) {
    return bound <= UINT32_MAX ? below_32(static_cast<uint32_t>(bound)) : below_64(bound);
  }

 private:
  uint32_t below_32(uint32_t bound) {
    uint64_t product = (next() >> 32) * bound;
    if (static_cast<uint32_t>(product) < bound) {
      const uint32_t unfair = -bound % bound;
      while (static_cast<uint32_t>(product) < unfair) product = (next() >> 32) * bound;
    }
    return static_cast<uint32_t>(product >> 32);
  }

  uint64_t below_64(uint64_t bound) {
    const uint64_t mask = UINT64_MAX >> std::countl_zero(bound - 1);
    uint64_t candidate = next() & mask;
    while (candidate >= bound) candidate = next() & mask;
    return candidate;
  }

  uint64_t words_[4];
};

}  // namespace

std::vector<int64_t> epoch_order(int64_t size, bool shuffle, uint64_t seed, int64_t epoch) {
  if (size < 0) throw ConfigError("epoch_order: size is " + std::to_string(size) + "; it counts samples, 0 or more");
  if (epoch < 0) throw ConfigError("epoch_order: epoch is " + std::to_string(epoch) + "; epochs count from 0");
  std::vector<int64_t> order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), int64_t{0});
  if (!shuffle) return order;
  Xoshiro256 random(seed, static_cast<uint64_t>(epoch));
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

}  // namespace saturate::data
