// SPDX-License-Identifier: Apache-2.0
// Finds where a NaN or inf comes from:
//
//   st::NanGuard guard;
//   st::Trainer trainer(net, ..., std::ref(guard));
//   trainer.fit(loader);        // warns: "blocks.3.norm: aten::rsqrt (forward) gave inf from inputs in [0, 1.2] ..."
//   guard.reports();
#pragma once

#include "saturate/marks.hpp"
#include "saturate/observe/window_replay.hpp"
#include "saturate/policy.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace saturate {

struct NanGuardOptions {
  int64_t closely = 300;  ///< the first windows, each of which is looked at at once
  int64_t every = 50;     ///< after that, windows between looks: one host read each. On a CPU, where reading waits for
                          ///< nothing, every window is looked at.
  int64_t max_kept_bytes = 256 << 20;  ///< batches kept for running again; looks sooner when there would be more
  int64_t overflow_patience = 10;      ///< with a GradScaler: overflows in a row that are no longer its business
  int64_t max_reports = 3;             ///< anomalies that are traced; later ones are only refused
  bool apply = false;                  ///< make the part an FP32 island where that would help
  bool raise = false;                  ///< throw NonFiniteError with the report's text

  /// @throws ConfigError a negative value, or `every` below 1.
  void validate() const;
};

struct NanReport {
  enum class Cause {
    data,            ///< the batch itself holds a value that is not finite
    weights,         ///< a parameter did before the window began
    arithmetic,      ///< an operator made it from finite inputs
    not_reproduced,  ///< running the window again gave finite values: weights have changed since, or a race
  };
  Cause cause = Cause::not_reproduced;
  int64_t window = 0;                   ///< windows seen before it
  std::string module;                   ///< innermost marked part; "" outside of all
  std::string op;                       ///< "aten::log"
  std::string node;                     ///< in backward: the autograd node, "LogBackward0"
  bool backward = false;                ///< direction
  std::string dtype;                    ///< of the operator's output
  double input_min = 0, input_max = 0;  ///< of the operator's finite inputs; of the batch when the cause is data
  std::vector<std::string> parameters;  ///< whose gradients are not finite
  std::string detail;                   ///< which input and samples, which weight
  std::string advice;
  bool applied = false;  ///< the part is an FP32 island from now on

  std::string message() const;
};

namespace detail {
class NanWatch;
}

/// Watches the loss and the norm of the gradients. A window in which either is not finite is refused, so the weights
/// stay clean; it is then run again with every operator observed, and the one that first gave a value that is not
/// finite is named, with its module (marks.hpp), direction and the range of its inputs. Running it again changes
/// nothing: not parameters, buffers, gradients nor random streams. A GradScaler's ordinary overflows are left to it.
class NanGuard {
 public:
  using axis = saturate::axis::guard;

  /// @throws ConfigError see NanGuardOptions::validate.
  explicit NanGuard(const NanGuardOptions& options = {});

  void attach(torch::nn::Module& module, c10::Device device);
  void begin();
  at::Tensor check(const at::Tensor& loss_sum, const at::Tensor& grad_norm, const at::Tensor& found_inf);
  /// @throws NonFiniteError where asked to; the window has been refused by then, and nothing has changed.
  void end(WindowReplay replay);

  const std::vector<NanReport>& reports() const;

 private:
  std::shared_ptr<detail::NanWatch> watch_;
};
static_assert(GuardPolicy<NanGuard>);

}  // namespace saturate
