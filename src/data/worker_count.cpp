// SPDX-License-Identifier: Apache-2.0
#include "worker_count.hpp"

#include <algorithm>
#include <utility>

namespace saturate::data::detail {

int64_t WorkerCount::observe(int64_t ready, int64_t depth) {
  waited_ += ready == 0;
  full_ += ready == depth;
  if (++asked_ < window) return wanted_;
  const bool short_of = waited_ >= 2, too_many = full_ == window;
  asked_ = waited_ = full_ = 0;
  calm_ = too_many ? calm_ + 1 : 0;
  if (short_of && wanted_ < most_) {
    ++wanted_;
    if (std::exchange(went_, false)) patience_ = std::min(2 * patience_, 1 << 12);
  } else if (calm_ >= patience_ && wanted_ > 1) {
    --wanted_;
    calm_ = 0;
    went_ = true;
  }
  return wanted_;
}

}  // namespace saturate::data::detail
