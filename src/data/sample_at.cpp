// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/sample_at.hpp"

#include "saturate/data/stage.hpp"

#include <bit>

namespace saturate::data {
namespace {

uint64_t split_mix(uint64_t& state) {
  state += 0x9e3779b97f4a7c15;
  uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

uint64_t mixed(uint64_t seed, uint64_t epoch) {
  uint64_t state = seed;
  state = split_mix(state) + epoch;
  return split_mix(state);
}

}  // namespace

SampleRandom::SampleRandom(const SampleAt& at)
    : SampleRandom(mixed(at.seed, static_cast<uint64_t>(at.epoch)), static_cast<uint64_t>(at.position)) {}

// The seed is mixed before the stream is added: (seed + 1, stream) and (seed, stream + 1) have nothing in common.
SampleRandom::SampleRandom(uint64_t seed, uint64_t stream) {
  uint64_t state = seed;
  state = split_mix(state) + stream;
  for (uint64_t& word : words_) word = split_mix(state);
}

uint64_t SampleRandom::next() {
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

uint64_t SampleRandom::below(uint64_t bound) {
  if (bound > UINT32_MAX) {
    const uint64_t mask = UINT64_MAX >> std::countl_zero(bound - 1);
    uint64_t candidate = next() & mask;
    while (candidate >= bound) candidate = next() & mask;
    return candidate;
  }
  const auto narrow = static_cast<uint32_t>(bound);
  uint64_t product = (next() >> 32) * narrow;
  if (static_cast<uint32_t>(product) < narrow) {
    const uint32_t unfair = -narrow % narrow;
    while (static_cast<uint32_t>(product) < unfair) product = (next() >> 32) * narrow;
  }
  return product >> 32;
}

namespace detail {
StageTotals& stage_totals() {
  thread_local StageTotals totals;
  return totals;
}
}  // namespace detail

}  // namespace saturate::data
