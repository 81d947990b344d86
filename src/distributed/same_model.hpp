// SPDX-License-Identifier: Apache-2.0
// Every rank begins with the same model: checked, and then made so.
#pragma once

#include "saturate/distributed/process_group.hpp"

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace saturate::distributed::detail {

/// @throws StateError, on every rank: parameters or buffers differ in number, name, shape, dtype or requires_grad. The
/// first that does is named with both. @param who begins the message.
void require_same_model(const torch::nn::Module& module, const ProcessGroup& group, const std::string& who);

/// Tensors become those of rank 0, in place.
void broadcast_from_first(const std::vector<at::Tensor>& tensors, const ProcessGroup& group);

/// All parameters and buffers of the module become those of rank 0.
void broadcast_model(const torch::nn::Module& module, const ProcessGroup& group);

}  // namespace saturate::distributed::detail
