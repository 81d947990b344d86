// SPDX-License-Identifier: Apache-2.0
// Which parameters decay, by name:
//
//   optim::AdamW optimizer(optim::decay_groups(*net, 0.1, {".*bias", ".*norm.*"}), {.lr = 1e-3});
#pragma once

#include "saturate/optim/cohort_optimizer.hpp"

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace saturate::optim {

/// Two groups, tied parameters once: the first decays with `weight_decay`, the second does not. Those of fewer than two
/// dimensions (biases, scales of norms) do not decay.
std::vector<ParamGroup> decay_groups(const torch::nn::Module& module, double weight_decay);

/// As above, by name: what one of `no_decay` matches does not decay. Patterns are regular expressions (ECMAScript) and
/// match a whole name, as named_parameters() gives it ("encoder.0.norm1.weight"); of a tied parameter, any of its
/// names.
/// @throws ConfigError a pattern that matches nothing, or is no regular expression; a negative weight decay.
std::vector<ParamGroup> decay_groups(const torch::nn::Module& module, double weight_decay,
                                     const std::vector<std::string>& no_decay);

}  // namespace saturate::optim
