// SPDX-License-Identifier: Apache-2.0
// Recompute::budget: the planner, fed with what the windows of a training measure.
#pragma once

#include "budget_planner.hpp"
#include "memory_gauge.hpp"
#include "recompute_plan.hpp"
#include "saturate/recompute/memory_plan.hpp"
#include "window_recorder.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace saturate::detail {

class BudgetPlan final : public RecomputePlan {
 public:
  /// @param clock seconds; empty: time itself, and on a GPU when it has done its work.
  BudgetPlan(int64_t budget, std::function<double()> clock);

  void attach(const torch::nn::Module& model, c10::Device device) override;
  bool enter(int64_t visit, const std::vector<std::string>& names, const torch::nn::Module& module) override;
  void leave() override;
  void begin_forward() override;
  void end_forward(bool failed) override;
  void begin_window() override;
  void end_window() override;
  void after_backward() override;

  const MemoryPlan& plan();
  std::vector<ParetoPoint> pareto() const { return planner_.model().pareto(); }

 private:
  void log_plan();
  std::size_t number_of(const std::vector<std::string>& names, const torch::nn::Module& module);
  void warn_once(bool& warned, const char* what) const;

  int64_t budget_;
  std::function<double()> given_clock_, clock_;
  c10::Device device_ = c10::Device(c10::kCPU);
  BudgetPlanner planner_;
  MemoryPlan plan_;
  std::unordered_map<const torch::nn::Module*, std::size_t> numbers_;
  std::vector<std::string> parts_;  // names by number

  // The running window.
  struct Window {
    Window();

    std::optional<MemoryGauge> gauge;  // none: memory cannot be seen
    int64_t base = 0;                  // level when its first forward began
    std::shared_ptr<WindowRecorder> recorder;
    std::optional<std::size_t> visit;  // the part that we are in
    bool begun = false, done = false, failed = false, new_part = false;
    int exceptions;
  };
  std::optional<Window> window_;
  int64_t nested_windows_ = 0;
  bool warned_no_window_ = false, warned_profiler_ = false, warned_not_done_ = false;
};

}  // namespace saturate::detail
