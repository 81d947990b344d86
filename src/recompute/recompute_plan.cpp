// SPDX-License-Identifier: Apache-2.0
#include "recompute_plan.hpp"

#include "saturate/error.hpp"
#include "saturate/log.hpp"
#include "saturate/recompute/detail/run_block.hpp"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <exception>
#include <regex>
#include <utility>

namespace saturate::detail {
namespace {

std::regex compiled(const std::string& pattern) {
  try {
    return std::regex(pattern);
  } catch (const std::regex_error& error) {
    throw ConfigError("Recompute::named: '" + pattern + "' is not a regular expression: " + error.what());
  }
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    if (!name.empty()) text += (text.empty() ? "" : ", ") + name;
  }
  return text.empty() ? "none: the model registers no modules" : text;
}

void match(const std::string& pattern, const marks::Names& names,
           std::unordered_set<const torch::nn::Module*>& chosen) {
  const std::regex regex = compiled(pattern);
  bool any = false;
  for (const auto& [module, all] : names.by_module()) {
    const bool matches = std::any_of(all.begin(), all.end(), [&](const std::string& name) {
      return !name.empty() && std::regex_match(name, regex);
    });
    if (matches) chosen.insert(module);
    any = any || matches;
  }
  if (!any) {
    throw ConfigError("Recompute::named: '" + pattern + "' matches no part of the model; its parts are " +
                      listed(names.all()));
  }
}

}  // namespace

void require_expression(const std::string& pattern) { compiled(pattern); }

void RecomputePlan::attach(const torch::nn::Module& model, c10::Device) {
  auto names = marks::bind(model);
  std::unordered_set<const torch::nn::Module*> chosen;
  for (const std::string& pattern : patterns_) match(pattern, *names, chosen);
  names_ = std::move(names);
  chosen_ = std::move(chosen);
  warned_ = false;
}

const std::shared_ptr<const marks::Names>& RecomputePlan::names() const {
  if (names_ == nullptr) throw StateError("Recompute: attach(model) before the first forward");
  return names_;
}

void RecomputePlan::warn_of_no_marks() {
  if (std::exchange(warned_, true)) return;
  log::warn(patterns_.empty()
                ? "Recompute has no effect: the model runs no part through saturate::call (docs/recompute.md)"
                : "Recompute::named has no effect: the model runs none of the parts that match through saturate::call "
                  "(docs/recompute.md)");
}

RecomputeObserver::RecomputeObserver(std::shared_ptr<RecomputePlan> plan)
    : plan_(std::move(plan)), exceptions_(std::uncaught_exceptions()) {
  plan_->begin_forward();
}

void RecomputeObserver::enter(const std::vector<std::string>& names, const torch::nn::Module& module) {
  const bool candidate = plan_->is_candidate(names, module);
  recomputes_ = false;
  if (candidate && inside_ == 0 && !inside_block()) {
    recomputes_ = plan_->enter(visits_++, names, module);
    asked_ = true;
  }
  if (candidate) ++inside_;
  met_ = met_ || candidate;
}

void RecomputeObserver::leave(const std::vector<std::string>& names, const torch::nn::Module& module) noexcept {
  if (plan_->is_candidate(names, module) && --inside_ == 0 && std::exchange(asked_, false)) plan_->leave();
}

void RecomputeObserver::pass_done() const {
  const bool failed = std::uncaught_exceptions() != exceptions_;
  plan_->end_forward(failed);
  if (met_) {
    plan_->met_marks();
  } else if (at::GradMode::is_enabled() && !failed) {
    plan_->warn_of_no_marks();
  }
}

}  // namespace saturate::detail
