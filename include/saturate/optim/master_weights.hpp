// SPDX-License-Identifier: Apache-2.0
// A model in BF16 or FP16, updated in FP32:
//
//   net->to(at::kBFloat16);
//   optim::MasterWeights optimizer(net->parameters(),
//                                  [](auto params) { return optim::AdamW(std::move(params), {.lr = 1e-3}); });
#pragma once

#include "saturate/optim/wide_optimizer.hpp"

#include <utility>
#include <vector>

namespace saturate::optim {

/// Keeps a float32 copy of every half-precision parameter (Micikevicius et al., "Mixed Precision Training", 2018): the
/// inner optimizer steps on the copies, and the parameters get them rounded. A step smaller than half a unit in the
/// last place of a parameter is not lost: 1 - 100 * 0.001 is 0.9, where BF16 alone stays at 1. Costs 4 bytes a
/// parameter.
///
/// A parameter that somebody else writes between steps (a loaded model) is followed: its copy is read from it again.
/// State by name: the inner optimizer's, and "master".
class MasterWeights final : public WideOptimizer {
 public:
  /// `make` makes the inner optimizer over what it is given: parameters or groups, as here, with float32 copies in
  /// place of those in half precision.
  /// @throws ConfigError an undefined parameter or no leaf; an inner optimizer over other parameters.
  template <class Make>
  MasterWeights(std::vector<at::Tensor> params, Make&& make) : WideOptimizer("MasterWeights") {
    make_inner(std::move(params), std::forward<Make>(make));
    note_versions();
  }
  template <class Make>
  MasterWeights(std::vector<ParamGroup> groups, Make&& make) : WideOptimizer("MasterWeights") {
    make_inner(std::move(groups), std::forward<Make>(make));
    note_versions();
  }

  OptimizerState state() const override;
  /// Parameters in half precision become their loaded copies, rounded.
  void load_state(const OptimizerState& state) override;

 private:
  void prepare() override;
  void write_back() override;
  void note_versions();

  std::vector<uint32_t> versions_;  // of the parameters, when last written here
};

}  // namespace saturate::optim
