// SPDX-License-Identifier: Apache-2.0
// A model in BF16, updated in FP32 without a kept FP32 copy:
//
//   optim::StochasticRounding optimizer(net->parameters(),
//                                       [](auto params) { return optim::AdamW(std::move(params), {.lr = 1e-3}); });
#pragma once

#include "saturate/optim/wide_optimizer.hpp"

#include <cstdint>
#include <utility>
#include <vector>

namespace saturate::optim {

struct StochasticRoundingOptions {
  uint64_t seed = 0;  ///< below 2^53
};

/// In place of MasterWeights where 4 bytes a parameter are too many: parameters are float32 only while the step runs,
/// and are written back up or down at random, with the probability of the distance (Gupta et al., "Deep Learning with
/// Limited Numerical Precision", 2015), so that small steps add up on average. The inner optimizer's own state is
/// float32.
///
/// Random numbers come from the seed, the count of steps and the parameter's name, never from LibTorch's generators.
/// The count goes with the state; a step that is refused takes none on the CPU. Finite values stay finite.
class StochasticRounding final : public WideOptimizer {
 public:
  /// `make` as for MasterWeights.
  /// @throws ConfigError a parameter in FP16, whose steps are too coarse and range too small; a seed of 2^53 or more;
  ///   as MasterWeights.
  template <class Make>
  StochasticRounding(std::vector<at::Tensor> params, Make&& make, const StochasticRoundingOptions& options = {})
      : WideOptimizer("StochasticRounding") {
    check(params, options);
    make_inner(std::move(params), std::forward<Make>(make));
    restore();
  }
  template <class Make>
  StochasticRounding(std::vector<ParamGroup> groups, Make&& make, const StochasticRoundingOptions& options = {})
      : WideOptimizer("StochasticRounding") {
    for (const ParamGroup& group : groups) check(group.params, options);
    make_inner(std::move(groups), std::forward<Make>(make));
    restore();
  }

  OptimizerState state() const override;
  void load_state(const OptimizerState& state) override;

 private:
  void check(const std::vector<at::Tensor>& params, const StochasticRoundingOptions& options);
  void prepare() override;
  void write_back() override;
  void restore() override;
  uint64_t key(const Pair& pair) const;

  uint64_t seed_ = 0;
  uint64_t draws_ = 0;  // steps that took random numbers
};

}  // namespace saturate::optim
