// SPDX-License-Identifier: Apache-2.0
// Which samples each batch of an epoch holds, on one rank. Step s takes [s * B, (s + 1) * B) of the epoch's sequence
// for the global batch B = batch_size * ranks, and rank r the r-th part of it: with the same B, the same samples a step
// however many ranks there are.
#pragma once

#include "saturate/data/loader_options.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace saturate::data::detail {

using Order = std::shared_ptr<const std::vector<int64_t>>;

class EpochPlan {
 public:
  /// @param length samples an epoch  @param start the first position that is wanted
  EpochPlan(int64_t length, int64_t start, const LoaderOptions& options);

  struct Range {
    int64_t first = 0;  ///< position; may reach past the end (Uneven::pad), then counts on from the beginning
    int64_t count = 0;
  };

  /// Batches on this rank.
  int64_t batches() const { return full_ + (rest_count_ > 0 ? 1 : 0); }
  Range batch(int64_t number) const;
  /// The position after the step in which batch `number` is taken; `length` when that was the last step on any rank.
  int64_t position_after(int64_t number) const;
  int64_t length() const { return length_; }

 private:
  int64_t length_, start_, batch_, ranks_, rank_;
  int64_t full_;            // steps in which every rank has a whole batch
  int64_t rest_first_ = 0;  // of this rank, in the step after them
  int64_t rest_count_ = 0;
  bool rest_anywhere_ = false;  // whether any rank has something in that step
};

}  // namespace saturate::data::detail
