// SPDX-License-Identifier: Apache-2.0
// What stands behind a Recompute policy: which parts it is for, and which of them it takes.
#pragma once

#include "saturate/marks.hpp"
#include "saturate/recompute/memory_plan.hpp"

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

namespace saturate::detail {

class RecomputePlan {
 public:
  /// @param patterns none: any part but the root is a candidate.
  RecomputePlan(int64_t every, std::vector<std::string> patterns) : every_(every), patterns_(std::move(patterns)) {}
  virtual ~RecomputePlan() = default;

  /// @throws ConfigError a pattern matches no part.
  virtual void attach(const torch::nn::Module& model, c10::Device device);
  /// @throws StateError before attach().
  const std::shared_ptr<const marks::Names>& names() const;
  /// Whether the policy is for a part.
  bool is_candidate(const std::vector<std::string>& names, const torch::nn::Module& module) const {
    return patterns_.empty() ? !names.front().empty() : chosen_.contains(&module);
  }

  /// An outermost candidate is entered. @param visit how many of this forward came before. @return whether it is
  /// recomputed.
  virtual bool enter(int64_t visit, const std::vector<std::string>&, const torch::nn::Module&) {
    return visit % every_ == 0;
  }
  /// That one is left.
  virtual void leave() {}
  virtual void begin_forward() {}
  /// @param failed by an exception.
  virtual void end_forward(bool failed) { static_cast<void>(failed); }
  virtual void begin_window() {}
  virtual void end_window() {}
  virtual void after_backward() {}

  void warn_of_no_marks();
  void met_marks() { warned_ = true; }

 private:
  int64_t every_;
  std::vector<std::string> patterns_;
  std::shared_ptr<const marks::Names> names_;
  std::unordered_set<const torch::nn::Module*> chosen_;
  bool warned_ = false;
};

/// @throws ConfigError not a regular expression.
void require_expression(const std::string& pattern);

/// Asks the plan, during one forward.
class RecomputeObserver final : public marks::Observer {
 public:
  explicit RecomputeObserver(std::shared_ptr<RecomputePlan> plan);
  void enter(const std::vector<std::string>& names, const torch::nn::Module& module) override;
  void leave(const std::vector<std::string>& names, const torch::nn::Module& module) noexcept override;
  bool recomputes(const torch::nn::Module&) const override { return recomputes_; }
  void pass_done() const;

 private:
  std::shared_ptr<RecomputePlan> plan_;
  int64_t visits_ = 0, inside_ = 0;  // candidates: outermost ones seen; those that we are in
  bool asked_ = false;               // the plan, about the outermost one that we are in
  bool recomputes_ = false;          // the part just entered
  bool met_ = false;                 // a candidate
  int exceptions_;
};

}  // namespace saturate::detail
