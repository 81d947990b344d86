// SPDX-License-Identifier: Apache-2.0
// Observes every operator of a forward and backward pass for the first that gives NaN or inf from inputs that had none.
#pragma once

#include "part_tracker.hpp"
#include "saturate/marks.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace saturate::detail {

struct NonFiniteOrigin {
  std::string module, op, node, dtype;
  bool backward = false;
  double input_min = 0, input_max = 0;
};

/// One at a time in a process; operators of other threads are seen too, because a GPU's backward runs on its own.
class NanTracer final : public marks::Observer {
 public:
  NanTracer();
  ~NanTracer() override;

  void enter(const std::vector<std::string>& names, const torch::nn::Module& module) override {
    parts_.enter(names, module);
  }
  void leave(const std::vector<std::string>& names, const torch::nn::Module& module) noexcept override {
    parts_.leave(names, module);
  }

  const std::optional<NonFiniteOrigin>& first() const { return first_; }
  /// The first backward node whose incoming gradient was not finite already, where no operator was seen making it.
  const std::optional<NonFiniteOrigin>& first_receiver() const { return receiver_; }

 private:
  friend struct TracerCallbacks;

  mutable std::mutex mutex_;
  PartTracker parts_;
  BackwardNodes nodes_;
  std::optional<NonFiniteOrigin> first_, receiver_;
  std::vector<at::CallbackHandle> handles_;
};

}  // namespace saturate::detail
