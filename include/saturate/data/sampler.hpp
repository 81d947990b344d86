// SPDX-License-Identifier: Apache-2.0
// The order in which an epoch visits the samples: a function of the seed and the epoch's number, and of nothing else.
#pragma once

#include <cstdint>
#include <vector>

namespace saturate::data {

/// The indices 0 .. size-1 in the order of epoch `epoch`: ascending, or with `shuffle` a uniform permutation.
///
/// The same on every machine and in every process; torch's generators are neither read nor advanced, so dropout and
/// other loaders make no difference. xoshiro256++ (Blackman, Vigna), seeded through SplitMix64, drives a Fisher-Yates
/// shuffle with Lemire's unbiased bounded numbers.
/// @throws ConfigError when size or epoch is negative.
std::vector<int64_t> epoch_order(int64_t size, bool shuffle, uint64_t seed, int64_t epoch);

}  // namespace saturate::data
