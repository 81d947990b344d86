// SPDX-License-Identifier: Apache-2.0
// Restarts a window that ran out of memory, with micro-batches of half the size and twice as many of them.
#pragma once

#include "saturate/trainer/micro_batch.hpp"
#include "saturate/trainer/options.hpp"
#include "saturate/trainer/out_of_memory.hpp"
#include "saturate/trainer/state_snapshot.hpp"

#include <c10/core/Device.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <utility>

namespace torch::nn {
class Module;
}

namespace saturate::detail {

/// Remembers over windows how small a micro-batch has to be.
class MicrobatchHalving {
 public:
  explicit MicrobatchHalving(OnOom on_oom) : on_oom_(on_oom) {}

  bool enabled() const { return on_oom_ != OnOom::fail; }

  /// Runs `attempt(micro_batches)` until it fits.
  /// @param undo clears the gradients of an attempt that did not.
  /// @param agree (out of memory here) -> out of memory on any rank: all of them start again, or none.
  template <class MicroBatches, class Attempt, class Undo, class Agree>
  void run(MicroBatches& micro_batches, torch::nn::Module& module, c10::Device device, Attempt attempt, Undo undo,
           Agree agree) {
    if (on_oom_ == OnOom::fail) return attempt(micro_batches);
    before_.take(module, device);
    if (parts_ > 1) micro_batches = split(micro_batches, parts_);
    while (true) {
      std::exception_ptr error = tried([&] { attempt(micro_batches); });
      if (!agree(error != nullptr)) return;
      undo();
      before_.restore();
      halve(largest(micro_batches), std::move(error), module, device);
      micro_batches = split(micro_batches, 2);
    }
  }

 private:
  /// The error, when it was a lack of memory; other errors are thrown on.
  template <class Attempt>
  static std::exception_ptr tried(Attempt attempt) {
    try {
      attempt();
    } catch (const std::exception& error) {
      if (!is_out_of_memory(error)) throw;
      return std::current_exception();
    }
    return nullptr;
  }
  template <class MicroBatches>
  static int64_t largest(const MicroBatches& micro_batches) {
    int64_t samples = 0;
    for (const auto& micro : micro_batches) samples = std::max(samples, micro.samples);
    return samples;
  }
  /// @throws the error: a micro-batch of one sample cannot be halved. Without one it was another rank's, which halves.
  void halve(int64_t samples, std::exception_ptr error, const torch::nn::Module& module, c10::Device device);

  OnOom on_oom_;
  int64_t parts_ = 1;
  StateSnapshot before_;
};

}  // namespace saturate::detail
