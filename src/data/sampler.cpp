// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/sampler.hpp"

#include "saturate/data/sample_at.hpp"
#include "saturate/error.hpp"

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

}  // namespace saturate::data
