// SPDX-License-Identifier: Apache-2.0
#include "saturate/trainer/fit_meter.hpp"

#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

namespace saturate::detail {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

at::Tensor total(const std::vector<at::Tensor>& tensors, const at::TensorOptions& options) {
  if (tensors.empty()) return at::zeros({}, options);
  return at::stack(tensors).to(at::kDouble).sum();
}

}  // namespace

FitMeter::FitMeter(const FitOptions& options, std::optional<int64_t> windows_per_epoch)
    : options_(options), windows_per_epoch_(windows_per_epoch), last_loss_(std::numeric_limits<double>::quiet_NaN()) {}

void FitMeter::begin_epoch(int64_t epoch_of_fit) {
  epoch_ = epoch_of_fit;
  epoch_windows_ = 0;
  epoch_begin_ = Clock::now();
}

void FitMeter::trained(const StepResult& result) {
  ++windows_;
  ++epoch_windows_;
  ++interval_.windows;
  interval_.samples += result.samples;
  samples_ += result.samples;
  losses_.push_back(result.loss_sum);
  if (result.count.on_host()) {
    host_count_ += result.count.host;
  } else {
    counts_.push_back(result.count.device);
  }
  if (result.refused.defined()) refusals_.push_back(result.refused);
  last_norm_ = result.grad_norm;
}

bool FitMeter::log_due() const { return options_.log_every > 0 && interval_.windows >= options_.log_every; }

bool FitMeter::evaluate_due(const TrainerState& state) const {
  return options_.evaluate_every > 0 && state.window % options_.evaluate_every == 0;
}

std::optional<int64_t> FitMeter::windows_left() const {
  std::optional<int64_t> left;
  if (windows_per_epoch_) {
    left = *windows_per_epoch_ * (options_.epochs - epoch_) - std::min(epoch_windows_, *windows_per_epoch_);
  }
  if (options_.max_windows > 0) {
    const int64_t limit = options_.max_windows - windows_;
    left = left ? std::min(*left, limit) : limit;
  }
  return left;
}

LogEvent FitMeter::log(TrainerState& state, double learning_rate) {
  LogEvent event{.state = state};
  const auto options = losses_.back().options().dtype(at::kDouble);
  at::Tensor norm = last_norm_.defined() ? last_norm_.to(options) : at::zeros({}, options);
  const at::Tensor values =
      at::stack({total(losses_, options), total(counts_, options), total(refusals_, options), norm}).cpu();
  const double* value = values.const_data_ptr<double>();
  const double targets = value[1] + host_count_;
  event.loss = targets > 0 ? value[0] / targets : std::numeric_limits<double>::quiet_NaN();
  event.refused = static_cast<int64_t>(value[2]);
  if (last_norm_.defined()) event.grad_norm = value[3];
  event.learning_rate = learning_rate;
  const double wall = std::max(seconds_since(interval_.begin) - interval_.left_out, 1e-9);
  event.samples_per_second = static_cast<double>(interval_.samples) / wall;
  event.data_wait_share = std::clamp(interval_.wait / wall, 0.0, 1.0);
  event.step_seconds = wall / static_cast<double>(interval_.windows);
  if (const auto left = windows_left()) event.eta_seconds = static_cast<double>(*left) * event.step_seconds;
  if (windows_per_epoch_ && *windows_per_epoch_ > 0) {
    event.epoch_progress =
        std::min(1.0, static_cast<double>(epoch_windows_) / static_cast<double>(*windows_per_epoch_));
  }
  event.epochs = options_.epochs;
  last_loss_ = event.loss;
  losses_.clear();
  counts_.clear();
  refusals_.clear();
  host_count_ = 0;
  interval_ = {};
  return event;
}

double FitMeter::seconds() const { return seconds_since(begin_); }
double FitMeter::epoch_seconds() const { return seconds_since(epoch_begin_); }

FitResult FitMeter::result() const {
  FitResult result;
  result.windows = windows_;
  result.samples = samples_;
  result.seconds = seconds();
  result.data_wait_seconds = total_wait_;
  result.loss = last_loss_;
  return result;
}

}  // namespace saturate::detail
