// SPDX-License-Identifier: Apache-2.0
// What Ema and Swa have in common: averages of a model's weights and buffers, by name, and a scope that puts them into
// the model.
//
//   st::Ema ema(*net, {.decay = 0.999});
//   for (...) { ...; optimizer.step(); ema.update(); }
//   {
//     const auto averaged = ema.scope();   // the model holds the averages ...
//     evaluate(net);
//   }                                      // ... and its own weights again, after an exception too
#pragma once

#include "saturate/policy.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace saturate {
namespace detail {
class Averager;
}

/// What becomes of floating-point buffers (BatchNorm's statistics): averaged like weights, or copied at every update.
/// Other buffers are copied in any case.
enum class AverageBuffers { average, copy };

/// What is to be saved: every average by name, tied parameters once.
struct AveragedState {
  std::string type;                            ///< "Ema", "Swa"
  int64_t steps = 0;                           ///< optimizer steps that were taken and seen
  std::map<std::string, at::Tensor> averages;  ///< copies: training that goes on does not change them
};

/// While it lives the model holds the averages: parameters and buffers keep their identity and dtype, only what they
/// hold is exchanged, and nothing is copied where the dtypes agree. What is written to buffers meanwhile
/// (update_batch_norm) stays in the averages; do not train inside. Without an update yet it changes nothing.
class AveragedScope {
 public:
  AveragedScope() = default;
  ~AveragedScope();
  AveragedScope(const AveragedScope&) = delete;
  AveragedScope& operator=(const AveragedScope&) = delete;

  /// Whether the model holds averages now.
  bool active() const { return averager_ != nullptr; }

 private:
  friend class AveragedWeights;
  explicit AveragedScope(std::shared_ptr<detail::Averager> averager);
  std::shared_ptr<detail::Averager> averager_;
};

/// Averages lie on the model's device and in float32 (float64 for float64), whatever the parameters' dtype; parameters
/// that share memory by being the same tensor are averaged once. A copy has averages of its own.
class AveragedWeights {
 public:
  using axis = saturate::axis::averaging;

  /// Starts with the module's present weights; the Trainer calls it. Attaching to the same module again keeps the
  /// averages. @throws ConfigError the averages are of another module, or a parameter is complex or sparse.
  void attach(torch::nn::Module& module, c10::Device device);

  /// After every window, or every step of a loop by hand.
  /// @param refused 0-dim float32, 1: the step was not taken, and nothing changes, bit for bit; undefined: it was.
  /// Nothing is read from a GPU.
  /// @throws StateError before attach, inside a scope, or when a parameter has changed its shape.
  void update(const at::Tensor& refused = {});

  /// Puts the averages into the model. @throws StateError inside another scope of the same averages, or before attach.
  AveragedScope scope();
  /// What Trainer::evaluate uses: scope(), or nothing with the option `evaluate` off.
  AveragedScope evaluation_scope();

  /// The live average of a parameter or buffer. @throws StateError there is none of that name.
  const at::Tensor& average(const std::string& name) const;
  /// Names in the model's order, parameters before buffers.
  std::vector<std::string> names() const;
  /// Optimizer steps seen that were taken; waits for a GPU that counts them.
  int64_t steps() const;
  /// How often the averages took in the weights; waits likewise.
  int64_t updates() const;

  AveragedState state() const;
  /// @throws StateError another type, names, shapes or dtypes, or inside a scope; nothing has been changed then.
  void load_state(const AveragedState& state);

 protected:
  explicit AveragedWeights(std::shared_ptr<detail::Averager> averager);
  AveragedWeights(const AveragedWeights& other);
  AveragedWeights& operator=(const AveragedWeights& other);
  AveragedWeights(AveragedWeights&&) = default;
  AveragedWeights& operator=(AveragedWeights&&) = default;
  ~AveragedWeights() = default;

 private:
  std::shared_ptr<detail::Averager> averager_;  // stays where it is when a policy moves into a Trainer
};
static_assert(AveragingPolicy<AveragedWeights>);

}  // namespace saturate
