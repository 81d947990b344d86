// SPDX-License-Identifier: Apache-2.0
#include "saturate/optim/adamw.hpp"

namespace saturate::optim {
namespace {

AdamOptions as_adam(const AdamWOptions& options) {
  return {.lr = options.lr,
          .beta1 = options.beta1,
          .beta2 = options.beta2,
          .eps = options.eps,
          .weight_decay = options.weight_decay,
          .amsgrad = options.amsgrad,
          .maximize = options.maximize};
}

}  // namespace

AdamW::AdamW(std::vector<at::Tensor> params, const AdamWOptions& options)
    : AdamW(std::vector<ParamGroup>{{.params = std::move(params)}}, options) {}

AdamW::AdamW(std::vector<ParamGroup> groups, const AdamWOptions& options)
    : Adam(method("AdamW", as_adam(options)), groups) {}

}  // namespace saturate::optim
