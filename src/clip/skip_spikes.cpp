// SPDX-License-Identifier: Apache-2.0
#include "saturate/clip/skip_spikes.hpp"

#include "saturate/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>

#include <cmath>

namespace saturate {

void SpikeOptions::validate() const {
  const auto complain = [](const char* name, auto value, const std::string& wanted) {
    throw ConfigError(c10::str("SkipSpikes: ", name, " is ", value, "; give ", wanted));
  };
  if (!(z_score > 0)) complain("z_score", z_score, "a value above 0");
  if (window < 2) complain("window", window, "2 steps or more");
  if (warmup < 2 || warmup > window) complain("warmup", warmup, c10::str("2 steps or more, up to window, ", window));
  if (max_consecutive < 1) complain("max_consecutive", max_consecutive, "1 or more");
  if (!(min_relative_std >= 0)) complain("min_relative_std", min_relative_std, "0 or more");
}

namespace detail {

void SpikeDetector::start(c10::Device device) {
  if (recent_.defined()) return;
  const auto whole = at::TensorOptions(device).dtype(at::kLong);
  recent_ = at::zeros({2, options_.window}, at::TensorOptions(device).dtype(at::kDouble));
  taken_ = at::zeros({}, whole);
  consecutive_ = at::zeros({}, whole);
  place_ = at::arange(options_.window, whole);
  mask_ = at::empty({options_.window}, whole.dtype(at::kBool));
  scratch_ = at::empty_like(recent_);
}

at::Tensor SpikeDetector::judge(const at::Tensor& loss, const at::Tensor& norm) {
  const at::NoGradGuard no_grad;
  start(norm.device());
  value_ = at::stack({loss.to(norm.device()), norm});
  const at::Tensor filled = taken_.clamp_max(options_.window);
  at::ge_out(mask_, place_, filled);
  const at::Tensor mean = recent_.sum(1) / filled.clamp_min(1);  // 0 where none is yet
  at::sub_out(scratch_, recent_, mean.unsqueeze(1)).square_().masked_fill_(mask_, 0);
  const at::Tensor variance = scratch_.sum(1) / (filled - 1).clamp_min(1);
  const at::Tensor deviation = at::maximum(variance.sqrt(), mean.abs() * options_.min_relative_std).clamp_min(1e-30);
  z_ = (value_ - mean) / deviation;
  const at::Tensor judged = (taken_ >= options_.warmup).logical_and(consecutive_ < options_.max_consecutive);
  spike_ = (z_ > options_.z_score).any().logical_and(judged);
  return spike_.to(at::kFloat);
}

void SpikeDetector::after_step(const at::Tensor& refused) {
  const at::NoGradGuard no_grad;
  if (!value_.defined()) return;
  const at::Tensor taken = refused.defined() ? refused == 0 : at::full({}, true, taken_.options().dtype(at::kBool));
  at::eq_out(mask_, place_, taken_.remainder(options_.window)).logical_and_(taken);
  at::where_out(recent_, mask_, value_.unsqueeze(1), recent_);
  taken_ = taken_ + taken;
  consecutive_ = at::where(spike_, consecutive_ + 1, at::where(taken, at::zeros_like(consecutive_), consecutive_));
  const at::Tensor index = at::full({1}, windows_++, recent_.options());
  unread_.push_back(at::cat({index, spike_.to(at::kDouble).view({1}), value_, z_}));
  value_ = at::Tensor();
  if (unread_.size() >= 1024) unread_ = {at::cat(unread_)};  // few tensors, also where nobody ever logs
}

const std::vector<SkippedStep>& SpikeDetector::skipped() {
  if (unread_.empty()) return skipped_;
  const at::Tensor rows = at::cat(unread_).view({-1, 6}).cpu();
  unread_.clear();
  const auto row = rows.accessor<double, 2>();
  for (int64_t i = 0; i < rows.size(0); ++i) {
    if (row[i][1] == 0) continue;
    skipped_.push_back({static_cast<int64_t>(row[i][0]), row[i][2], row[i][3], row[i][4], row[i][5]});
  }
  return skipped_;
}

}  // namespace detail
}  // namespace saturate
