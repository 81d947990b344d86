// SPDX-License-Identifier: Apache-2.0
#include "saturate/precision/fp32_islands.hpp"

#include "saturate/error.hpp"
#include "saturate/log.hpp"

#include <torch/nn/module.h>

#include <algorithm>
#include <regex>
#include <unordered_set>
#include <utility>

namespace saturate {
namespace {

std::regex compiled(const std::string& pattern) {
  try {
    return std::regex(pattern);
  } catch (const std::regex_error& error) {
    throw ConfigError("keep_fp32: '" + pattern + "' is not a regular expression: " + error.what());
  }
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    if (!name.empty()) text += (text.empty() ? "" : ", ") + name;
  }
  return text.empty() ? "none: the model registers no modules" : text;
}

// A copy of the set, so that it neither ends nor changes between a forward and its second run.
class SameIslands final : public marks::Observer {
 public:
  explicit SameIslands(std::unordered_set<const torch::nn::Module*> islands) : islands_(std::move(islands)) {}
  void enter(const std::vector<std::string>&, const torch::nn::Module&) override {}
  void leave(const std::vector<std::string>&, const torch::nn::Module&) noexcept override {}
  bool keeps_fp32(const torch::nn::Module& module) const override { return islands_.contains(&module); }

 private:
  std::unordered_set<const torch::nn::Module*> islands_;
};

}  // namespace

std::shared_ptr<marks::Observer> Fp32Islands::lasting() {
  if (lasting_ != nullptr) return lasting_;
  std::unordered_set<const torch::nn::Module*> islands;
  for (const auto& island : islands_) islands.insert(island.first);
  lasting_ = std::make_shared<SameIslands>(std::move(islands));
  return lasting_;
}

void Fp32Islands::add(const std::string& pattern) {
  compiled(pattern);
  if (names_ != nullptr) match(pattern);
  patterns_.push_back(pattern);
}

void Fp32Islands::attach(const torch::nn::Module& model) {
  names_ = marks::bind(model);
  islands_.clear();
  lasting_.reset();
  for (const std::string& pattern : patterns_) match(pattern);
}

void Fp32Islands::match(const std::string& pattern) {
  const std::regex regex = compiled(pattern);
  bool any = false;
  for (const auto& [module, names] : names_->by_module()) {
    const auto found = std::find_if(names.begin(), names.end(),
                                    [&](const std::string& name) { return std::regex_match(name, regex); });
    if (found == names.end()) continue;
    any = true;
    islands_.emplace(module, Island{*found});
    lasting_.reset();
  }
  if (!any) {
    throw ConfigError("keep_fp32: '" + pattern + "' matches no part of the model; its parts are " +
                      listed(names_->all()));
  }
}

std::unique_ptr<marks::Scope> Fp32Islands::scope() {
  if (islands_.empty()) return nullptr;
  return std::make_unique<marks::Scope>(names_, this);
}

void Fp32Islands::enter(const std::vector<std::string>&, const torch::nn::Module& module) {
  const auto island = islands_.find(&module);
  if (island != islands_.end()) island->second.seen = true;
}

bool Fp32Islands::keeps_fp32(const torch::nn::Module& module) const { return islands_.contains(&module); }

void Fp32Islands::warn_of_unmarked() {
  if (warned_ || islands_.empty()) return;
  warned_ = true;
  std::vector<std::string> unseen;
  for (const auto& [module, island] : islands_) {
    if (!island.seen) unseen.push_back(island.name);
  }
  if (unseen.empty()) return;
  std::sort(unseen.begin(), unseen.end());
  log::warn("keep_fp32 has no effect on " + listed(unseen) +
            ": the model does not run them through saturate::call (docs/precision.md)");
}

}  // namespace saturate
