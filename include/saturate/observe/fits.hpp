// SPDX-License-Identifier: Apache-2.0
// Whether a batch fits, before it is tried:
//
//   const auto report = st::fits(net, st::CrossEntropy{}, batch, {.optimizer = &optimizer});
//   if (!report.fits) std::puts(report.message().c_str());   // and report.largest_batch says what would
#pragma once

#include "saturate/data/batch.hpp"
#include "saturate/for_each_tensor.hpp"
#include "saturate/loss.hpp"
#include "saturate/marks.hpp"
#include "saturate/observe/memory_forecast.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace saturate {
namespace optim {
class Optimizer;
}

struct FitsOptions {
  /// What it holds and what its first steps will make counts. Without one: two moments of every parameter, as AdamW
  /// keeps them.
  const optim::Optimizer* optimizer = nullptr;
  /// What everything has to stay within. Default: what is held now and free_memory_bytes().
  std::optional<int64_t> limit_bytes;
  /// Share of the limit that is left free: for what the forecast misses, and for holes between blocks.
  double reserve = 0.05;
  /// Batch sizes to try. Default: an eighth, a quarter and half of the batch.
  std::vector<int64_t> probe_sizes;
};

struct FitsReport {
  bool fits = false;
  int64_t samples = 0;
  int64_t peak_bytes = 0;     ///< of held + state + step; the largest int64 when the smallest probes ran out of memory
  int64_t limit_bytes = 0;    ///< without the reserve
  int64_t held_bytes = 0;     ///< now: on a GPU by all tensors, else by parameters, buffers, gradients, optimizer state
  int64_t state_bytes = 0;    ///< optimizer state to come
  int64_t step_bytes = 0;     ///< what forward and backward add: activations, gradients, workspace
  int64_t largest_batch = 0;  ///< samples that fit; 0: not known, or not even one
  std::optional<MemoryForecast> forecast;

  /// One sentence.
  std::string message() const;
};

namespace detail {
FitsReport fits(torch::nn::Module& module, int64_t samples, c10::Device device,
                const std::function<void(int64_t)>& probe, const FitsOptions& options);
c10::Device device_of(const torch::nn::Module& module);
/// Views of the first `samples` rows on the device. A tensor without a batch dimension of `whole` stays as it is.
void take_rows(at::Tensor& tensor, int64_t whole, int64_t samples, c10::Device device);
void backward_of_sum(const at::Tensor& value);
/// Rows of the first tensor inside `inputs`.
template <class Inputs>
int64_t rows_of(const Inputs& inputs);
}  // namespace detail

/// Forecasts the highest memory of a step with a batch of `samples` from small probes. Everything that the probes
/// change is put back, after an exception too: buffers, random streams, gradients, and the modules' modes (they run in
/// training mode). A probe that runs out of memory is an answer, no error.
/// @param probe runs forward and backward with that many samples, as training does; the gradients that it leaves are
///   taken away.
/// @param device whose memory is asked about: where the model is.
/// @throws ConfigError a setting that cannot work. What `probe` throws.
inline FitsReport fits(torch::nn::Module& module, int64_t samples, c10::Device device,
                       const std::function<void(int64_t)>& probe, const FitsOptions& options = {}) {
  return detail::fits(module, samples, device, probe, options);
}

/// The same with forward, `loss` (as the Trainer takes it) and backward over the first rows of `batch`.
template <class Model, class Loss, BatchLike Batch>
FitsReport fits(Model& model, const Loss& loss, const Batch& batch, const FitsOptions& options = {}) {
  auto& module = marks::detail::module_of(model);
  const c10::Device device = detail::device_of(module);
  const int64_t whole = detail::rows_of(detail::batch_inputs(batch));
  const auto probe = [&](int64_t samples) {
    const auto first = [&](at::Tensor& tensor) { detail::take_rows(tensor, whole, samples, device); };
    auto inputs = std::apply([](const auto&... i) { return std::tuple<std::remove_cvref_t<decltype(i)>...>(i...); },
                             detail::batch_inputs(batch));
    auto target = detail::batch_target(batch);
    visit_tensors(inputs, first);
    visit_tensors(target, first);
    const auto output = std::apply([&](const auto&... input) { return module.forward(input...); }, inputs);
    const auto value = loss(output, target);
    if constexpr (detail::is_sum_count<decltype(value)>) {
      detail::backward_of_sum(value.sum);
    } else {
      detail::backward_of_sum(value);
    }
  };
  return detail::fits(module, whole, device, probe, options);
}

/// The same for a batch without targets, through the sum of the model's output: what a loss would need is left out.
template <class Model>
FitsReport fits(Model& model, const at::Tensor& batch, const FitsOptions& options = {}) {
  return fits(
      model, [](const at::Tensor& output, const at::Tensor&) { return output; }, std::pair(batch, at::Tensor()),
      options);
}

template <class Inputs>
int64_t detail::rows_of(const Inputs& inputs) {
  int64_t rows = 0;
  visit_tensors(inputs, [&](const at::Tensor& tensor) {
    if (rows == 0 && tensor.defined() && tensor.dim() > 0) rows = tensor.size(0);
  });
  return rows;
}

}  // namespace saturate
