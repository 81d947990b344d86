// SPDX-License-Identifier: Apache-2.0
// Parts of a model that stay in float32 inside autocast, chosen by name:
//
//   st::Trainer trainer(net, ..., st::Bf16{}.keep_fp32("blocks.*.norm.*"));
//
// A pattern is an ECMAScript regular expression for the whole name of a part. It acts where the model runs the part
// through saturate::call (marks.hpp).
#pragma once

#include "saturate/marks.hpp"

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace saturate {

/// Which parts are islands. Autocast is off inside one: its float16 and bfloat16 inputs are cast to float32, and its
/// float32 outputs back to what the first of them was.
class Fp32Islands final : public marks::Observer {
 public:
  Fp32Islands() = default;

  /// @throws ConfigError not a regular expression; after attach(): it matches no part, with a list of the names.
  void add(const std::string& pattern);
  /// Looks the patterns up among the model's parts. @throws ConfigError one matches none, with a list of the names.
  void attach(const torch::nn::Module& model);

  bool empty() const { return patterns_.empty(); }
  const std::vector<std::string>& patterns() const { return patterns_; }
  /// Marks on for this thread; nullptr when there is no island.
  std::unique_ptr<marks::Scope> scope();

  void enter(const std::vector<std::string>& names, const torch::nn::Module& module) override;
  void leave(const std::vector<std::string>&, const torch::nn::Module&) noexcept override {}
  bool keeps_fp32(const torch::nn::Module& module) const override;
  /// Islands are islands in a second forward too, also when this object is gone by then.
  std::shared_ptr<marks::Observer> lasting() override;

  /// Warns, once, of islands that no forward pass has come through: the model runs them without saturate::call, so they
  /// have no effect. To be called after a first pass.
  void warn_of_unmarked();

 private:
  struct Island {
    std::string name;
    bool seen = false;
  };
  void match(const std::string& pattern);

  std::vector<std::string> patterns_;
  std::shared_ptr<const marks::Names> names_;  // set by attach
  std::unordered_map<const torch::nn::Module*, Island> islands_;
  std::shared_ptr<marks::Observer> lasting_;  // the islands as they are; nullptr: to be made
  bool warned_ = false;
};

}  // namespace saturate
