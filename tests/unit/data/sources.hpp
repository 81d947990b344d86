// SPDX-License-Identifier: Apache-2.0
// Sources whose samples are their own numbers, and that can count, wait and fail.
#pragma once

#include "saturate/data/source.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace saturate::test {

inline void write_number(int64_t index, std::array<std::byte*, 2> out) {
  const auto value = static_cast<float>(index);
  std::memcpy(out[0], &value, sizeof value);
  std::memcpy(out[1], &index, sizeof index);
}

/// Sample i is (float(i) [1], int64(i)). `before` is called on the reading thread with the sample's number.
struct Numbers {
  static constexpr std::size_t fields = 2;
  int64_t count = 0;
  std::function<void(int64_t)> before;
  std::shared_ptr<std::atomic<int64_t>> reads = std::make_shared<std::atomic<int64_t>>(0);

  int64_t size() const { return count; }
  std::array<data::FieldLayout, fields> layout() const {
    return {data::FieldLayout{at::kFloat, {1}}, data::FieldLayout{at::kLong, {}}};
  }
  void read(int64_t index, std::array<std::byte*, fields> out) const {
    reads->fetch_add(1);
    if (before) before(index);
    write_number(index, out);
  }
};

/// Waits until `condition` holds. @return whether it did, in a time that only a hang exceeds.
template <class Condition>
bool eventually(Condition condition) {
  for (int i = 0; i < 20000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

/// The targets of every batch that a loop over `loader` gives, one list a batch.
template <class Loader>
std::vector<std::vector<int64_t>> batches_of(Loader& loader) {
  std::vector<std::vector<int64_t>> result;
  for (auto& batch : loader) {
    const auto* values = batch.target().template const_data_ptr<int64_t>();
    result.emplace_back(values, values + batch.target().numel());
  }
  return result;
}

template <class Loader>
std::vector<int64_t> samples_of(Loader& loader) {
  std::vector<int64_t> result;
  for (const auto& batch : batches_of(loader)) result.insert(result.end(), batch.begin(), batch.end());
  return result;
}

}  // namespace saturate::test
