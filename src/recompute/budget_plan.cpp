// SPDX-License-Identifier: Apache-2.0
#include "budget_plan.hpp"

#include "first_forward.hpp"
#include "saturate/error.hpp"
#include "saturate/log.hpp"

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <exception>
#include <sstream>
#include <utility>

namespace saturate::detail {
namespace {

std::function<double()> wall_clock(c10::Device device) {
  return [device] {
    if (!device.is_cpu()) {
      const c10::impl::VirtualGuardImpl guard(device.type());
      guard.synchronizeDevice(device.has_index() ? device.index() : guard.getDevice().index());
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
}

}  // namespace

BudgetPlan::BudgetPlan(int64_t budget, std::function<double()> clock)
    : RecomputePlan(1, {}), budget_(budget), given_clock_(std::move(clock)), planner_(budget) {}

void BudgetPlan::attach(const torch::nn::Module& model, c10::Device device) {
  RecomputePlan::attach(model, device);
  device_ = device;
  clock_ = given_clock_ ? given_clock_ : wall_clock(device);
  planner_ = BudgetPlanner(budget_);
  numbers_.clear();
  parts_.clear();
  if (!recomputes_by_hooks()) {
    planner_.hold_everything_recomputed();
    log::warn(
        "Recompute::budget: another autograd engine is installed (Python's?), where parts cannot tell what they would "
        "keep: everything is recomputed");
  }
}

std::size_t BudgetPlan::number_of(const std::vector<std::string>& names, const torch::nn::Module& module) {
  const auto [found, is_new] = numbers_.try_emplace(&module, parts_.size());
  if (is_new) parts_.push_back(names.front());
  return found->second;
}

// A forward pass -----------------------------------------------------------------------------------------------------

bool BudgetPlan::enter(int64_t, const std::vector<std::string>& names, const torch::nn::Module& module) {
  const std::size_t part = number_of(names, module);
  const bool recomputes = !planner_.keeps(part);
  if (window_ && at::GradMode::is_enabled() && !planner_.knows(part)) window_->new_part = true;
  if (window_ && window_->recorder != nullptr && at::GradMode::is_enabled()) {
    window_->visit = window_->recorder->enter(part);
    if (recomputes) listen_to_next_frame(window_->recorder->listener(*window_->visit));
  }
  return recomputes;
}

void BudgetPlan::leave() {
  if (!window_ || !window_->visit) return;
  listen_to_next_frame(nullptr);  // where nothing was to differentiate, there was no block
  try {
    window_->recorder->leave(*window_->visit);
  } catch (...) {  // the clock: a GPU's error, which comes out of the next call that asks
    window_->failed = true;
  }
  window_->visit.reset();
}

void BudgetPlan::begin_forward() {
  if (!window_) {
    if (at::GradMode::is_enabled()) {
      warn_once(warned_no_window_,
                "Recompute::budget: this forward is in no window, so its memory is not measured; hold a window_scope() "
                "around forward and backward (docs/recompute.md)");
    }
    return;
  }
  if (!window_->gauge || std::exchange(window_->begun, true)) return;
  window_->gauge->reset_peak();
  window_->base = window_->gauge->level();
  if (planner_.records()) {
    window_->recorder =
        std::make_shared<WindowRecorder>(*window_->gauge, planner_.times_parts() ? clock_ : std::function<double()>());
  }
}

void BudgetPlan::end_forward(bool failed) {
  if (!window_ || window_->recorder == nullptr) return;
  window_->recorder->forward_over();
  window_->failed = window_->failed || failed;
}

// A window -----------------------------------------------------------------------------------------------------------

BudgetPlan::Window::Window() : exceptions(std::uncaught_exceptions()) {}

void BudgetPlan::begin_window() {
  if (window_) {
    ++nested_windows_;
    return;
  }
  window_.emplace();
  try {
    window_->gauge.emplace(device_);
  } catch (const StateError&) {
    warn_once(
        warned_profiler_,
        "Recompute::budget: LibTorch's profiler holds the memory hook; the plan is held as it is, and windows are "
        "not measured until it ends");
  }
}

void BudgetPlan::end_window() {
  if (nested_windows_ > 0) {
    --nested_windows_;
    return;
  }
  if (window_->begun && !window_->done && std::uncaught_exceptions() == window_->exceptions) {
    warn_once(warned_not_done_,
              "Recompute::budget: a window ended without after_backward(), so nothing is learnt from it; call it when "
              "backward is over (docs/recompute.md)");
  }
  if (window_->recorder != nullptr) window_->recorder->close();
  window_.reset();
}

void BudgetPlan::after_backward() {
  if (!window_) throw StateError("Recompute::budget: after_backward() belongs within a window_scope()");
  if (!window_->begun) return;
  window_->done = true;
  window_->begun = false;  // another forward would begin anew
  if (window_->recorder == nullptr) {
    planner_.watch(window_->gauge->peak() - window_->base);
    if (planner_.settled() && window_->new_part) planner_.meet_new_part();
    return;
  }
  const WindowRecord record = std::exchange(window_->recorder, nullptr)->finish();
  if (window_->failed) return;  // and was begun again: not the memory of a window
  if (planner_.add(record)) log_plan();
}

// The plan -----------------------------------------------------------------------------------------------------------

const MemoryPlan& BudgetPlan::plan() {
  const BudgetModel& model = planner_.model();
  plan_ = MemoryPlan();
  double total = 0, recomputed = 0;
  for (const std::size_t part : model.order()) {
    const bool keeps = planner_.keeps(part);
    plan_.rows.push_back({parts_[part], 1e3 * model.seconds(part), model.input_bytes(part),
                          model.input_bytes(part) + model.bytes(part), !keeps});
    total += model.seconds(part);
    if (!keeps) recomputed += model.seconds(part);
  }
  plan_.budget = budget_;
  plan_.predicted_peak = planner_.predicted_peak();
  plan_.measured_peak = planner_.settled() ? planner_.measured_peak() : 0;
  plan_.recomputed_share = total > 0 ? recomputed / total : 0;
  plan_.settled = planner_.settled();
  return plan_;
}

void BudgetPlan::log_plan() {
  std::ostringstream text;
  plan().print(text);
  std::string table = text.str();
  if (!table.empty()) table.pop_back();
  log::info("Recompute::budget: " + table);
}

void BudgetPlan::warn_once(bool& warned, const char* what) const {
  if (!std::exchange(warned, true)) log::warn(what);
}

}  // namespace saturate::detail
