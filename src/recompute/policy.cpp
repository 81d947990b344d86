// SPDX-License-Identifier: Apache-2.0
#include "saturate/recompute/policy.hpp"

#include "budget_plan.hpp"
#include "recompute_plan.hpp"
#include "saturate/error.hpp"

#include <c10/util/StringUtil.h>

#include <utility>

namespace saturate {
namespace detail {

RecomputePass::RecomputePass(std::shared_ptr<RecomputePlan> plan) {
  const auto names = plan->names();
  observer_ = std::make_unique<RecomputeObserver>(std::move(plan));
  marks_ = std::make_unique<marks::Scope>(names, observer_.get());
}

RecomputePass::~RecomputePass() {
  marks_.reset();
  try {
    observer_->pass_done();
  } catch (...) {  // NOLINT(bugprone-empty-catch): a warning that cannot be written ends no training
  }
}

RecomputeWindow::RecomputeWindow(std::shared_ptr<RecomputePlan> plan) : plan_(std::move(plan)) {
  plan_->begin_window();
}

RecomputeWindow::~RecomputeWindow() {
  try {
    plan_->end_window();
  } catch (...) {  // NOLINT(bugprone-empty-catch): nor does this one
  }
}

}  // namespace detail

Recompute::Recompute(std::shared_ptr<detail::RecomputePlan> plan) : plan_(std::move(plan)) {}

Recompute Recompute::all() { return every(1); }

Recompute Recompute::every(int64_t n) {
  if (n < 1) throw ConfigError(c10::str("Recompute::every: n is ", n, "; give 1 (every part) or more"));
  return Recompute(std::make_shared<detail::RecomputePlan>(n, std::vector<std::string>()));
}

Recompute Recompute::named(std::vector<std::string> patterns) {
  if (patterns.empty()) throw ConfigError("Recompute::named: no pattern; give one, or use Recompute::all()");
  for (const std::string& pattern : patterns) detail::require_expression(pattern);
  return Recompute(std::make_shared<detail::RecomputePlan>(1, std::move(patterns)));
}

Recompute Recompute::budget(int64_t bytes, std::function<double()> clock) {
  if (bytes < 1) {
    throw ConfigError(c10::str("Recompute::budget: ", bytes, " bytes; give what forward and backward may hold"));
  }
  return Recompute(std::make_shared<detail::BudgetPlan>(bytes, std::move(clock)));
}

void Recompute::attach(const torch::nn::Module& model, c10::Device device) { plan_->attach(model, device); }

void Recompute::after_backward() { plan_->after_backward(); }

const MemoryPlan& Recompute::plan() const { return budget_plan().plan(); }

std::vector<ParetoPoint> Recompute::pareto() const { return budget_plan().pareto(); }

detail::BudgetPlan& Recompute::budget_plan() const {
  auto* plan = dynamic_cast<detail::BudgetPlan*>(plan_.get());
  if (plan == nullptr) throw StateError("Recompute: only a budget(bytes) has a plan");
  return *plan;
}

}  // namespace saturate
