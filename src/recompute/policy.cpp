// SPDX-License-Identifier: Apache-2.0
#include "saturate/recompute/policy.hpp"

#include "saturate/error.hpp"
#include "saturate/log.hpp"
#include "saturate/recompute/detail/run_block.hpp"

#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <exception>
#include <regex>
#include <unordered_set>
#include <utility>

namespace saturate {
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

}  // namespace

namespace detail {

class RecomputePlan {
 public:
  RecomputePlan(int64_t every, std::vector<std::string> patterns) : every_(every), patterns_(std::move(patterns)) {}

  void attach(const torch::nn::Module& model) {
    auto names = marks::bind(model);
    std::unordered_set<const torch::nn::Module*> chosen;
    for (const std::string& pattern : patterns_) match(pattern, *names, chosen);
    names_ = std::move(names);
    chosen_ = std::move(chosen);
    warned_ = false;
  }

  const std::shared_ptr<const marks::Names>& names() const {
    if (names_ == nullptr) throw StateError("Recompute: attach(model) before the first forward");
    return names_;
  }

  /// Whether the policy is for a part; every() then counts. The root is the model itself.
  bool is_candidate(const std::vector<std::string>& names, const torch::nn::Module& module) const {
    return patterns_.empty() ? !names.front().empty() : chosen_.contains(&module);
  }
  bool takes(int64_t visit) const { return visit % every_ == 0; }

  void warn_of_no_marks() {
    if (std::exchange(warned_, true)) return;
    log::warn(
        patterns_.empty()
            ? "Recompute has no effect: the model runs no part through saturate::call (docs/recompute.md)"
            : "Recompute::named has no effect: the model runs none of the parts that match through saturate::call "
              "(docs/recompute.md)");
  }
  void met_marks() { warned_ = true; }

 private:
  static void match(const std::string& pattern, const marks::Names& names,
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

  int64_t every_;
  std::vector<std::string> patterns_;  // none: any part
  std::shared_ptr<const marks::Names> names_;
  std::unordered_set<const torch::nn::Module*> chosen_;
  bool warned_ = false;
};

class RecomputeObserver final : public marks::Observer {
 public:
  explicit RecomputeObserver(std::shared_ptr<RecomputePlan> plan) : plan_(std::move(plan)) {}

  void enter(const std::vector<std::string>& names, const torch::nn::Module& module) override {
    const bool candidate = plan_->is_candidate(names, module);
    recomputes_ = false;
    if (candidate && inside_ == 0 && !inside_block()) recomputes_ = plan_->takes(visits_++);
    if (candidate) ++inside_;
    met_ = met_ || candidate;
  }
  void leave(const std::vector<std::string>& names, const torch::nn::Module& module) noexcept override {
    if (plan_->is_candidate(names, module)) --inside_;
  }
  bool recomputes(const torch::nn::Module&) const override { return recomputes_; }

  void pass_done() const {
    if (met_) {
      plan_->met_marks();
    } else if (at::GradMode::is_enabled() && std::uncaught_exceptions() == exceptions_) {
      plan_->warn_of_no_marks();
    }
  }

 private:
  std::shared_ptr<RecomputePlan> plan_;
  int64_t visits_ = 0, inside_ = 0;  // candidates: outermost ones seen; those that we are in
  bool recomputes_ = false;          // the part just entered
  bool met_ = false;                 // a candidate
  int exceptions_ = std::uncaught_exceptions();
};

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

}  // namespace detail

Recompute::Recompute(std::shared_ptr<detail::RecomputePlan> plan) : plan_(std::move(plan)) {}

Recompute Recompute::all() { return every(1); }

Recompute Recompute::every(int64_t n) {
  if (n < 1) throw ConfigError(c10::str("Recompute::every: n is ", n, "; give 1 (every part) or more"));
  return Recompute(std::make_shared<detail::RecomputePlan>(n, std::vector<std::string>()));
}

Recompute Recompute::named(std::vector<std::string> patterns) {
  if (patterns.empty()) throw ConfigError("Recompute::named: no pattern; give one, or use Recompute::all()");
  for (const std::string& pattern : patterns) compiled(pattern);
  return Recompute(std::make_shared<detail::RecomputePlan>(1, std::move(patterns)));
}

void Recompute::attach(const torch::nn::Module& model, c10::Device) { plan_->attach(model); }

}  // namespace saturate
