// SPDX-License-Identifier: Apache-2.0
#include "epoch_plan.hpp"

#include <algorithm>

namespace saturate::data::detail {
namespace {
int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
}  // namespace

EpochPlan::EpochPlan(int64_t length, int64_t start, const LoaderOptions& options)
    : length_(length),
      start_(start),
      batch_(options.batch_size),
      ranks_(options.ranks),
      rank_(options.rank),
      full_((length - start) / batch_ / ranks_) {
  const int64_t first = start_ + full_ * batch_ * ranks_, rest = length_ - first;
  if (options.drop_last || rest == 0) return;
  if (options.uneven == Uneven::allow) {
    // Rounded up: rank 0 has the most, and a batch whenever any rank has one.
    rest_first_ = first + divided_up(rest * rank_, ranks_);
    rest_count_ = first + divided_up(rest * (rank_ + 1), ranks_) - rest_first_;
    rest_anywhere_ = true;
    return;
  }
  rest_count_ = options.uneven == Uneven::pad ? divided_up(rest, ranks_) : rest / ranks_;
  rest_first_ = first + rank_ * rest_count_;
  rest_anywhere_ = rest_count_ > 0;
}

EpochPlan::Range EpochPlan::batch(int64_t number) const {
  if (number < full_) return {start_ + (number * ranks_ + rank_) * batch_, batch_};
  return {rest_first_, rest_count_};
}

int64_t EpochPlan::position_after(int64_t number) const {
  const int64_t steps = full_ + (rest_anywhere_ ? 1 : 0);
  return number + 1 >= steps ? length_ : start_ + (number + 1) * batch_ * ranks_;
}

}  // namespace saturate::data::detail
