// SPDX-License-Identifier: Apache-2.0
// Statistics of BatchNorm for weights that no forward pass has met, such as averaged ones:
//
//   const auto averaged = swa.scope();
//   st::update_batch_norm(net, loader);   // the statistics stay with the averages
#pragma once

#include "saturate/data/batch.hpp"
#include "saturate/for_each_tensor.hpp"
#include "saturate/trainer/step_support.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <vector>

namespace torch::nn {
class Module;
}

namespace saturate {
namespace detail {

/// Train mode, no gradients, statistics reset and averaged over all batches alike, while it lives; then modes and
/// momenta are as they were, and so are the statistics unless finish() was called.
class BatchNormUpdate {
 public:
  explicit BatchNormUpdate(torch::nn::Module& module);
  ~BatchNormUpdate();
  BatchNormUpdate(const BatchNormUpdate&) = delete;
  BatchNormUpdate& operator=(const BatchNormUpdate&) = delete;

  bool needed() const { return !norms_.empty(); }
  c10::Device device() const { return device_; }
  /// Keeps the new statistics. @throws DataError there was no batch.
  void finish(int64_t batches);

 private:
  struct Norm {
    std::shared_ptr<torch::nn::Module> module;
    std::optional<double> momentum;
    std::vector<at::Tensor> statistics;  // copies of the buffers
  };
  at::NoGradGuard no_grad_;
  ModeScope train_;
  std::vector<Norm> norms_;
  c10::Device device_;
  bool finished_ = false;
};

}  // namespace detail

/// One pass over `loader`; running means and variances of every BatchNorm become the means over its batches. Other
/// layers run in train mode as well, dropout too. Python's swa_utils.update_bn. Modes and momenta are restored; after
/// an exception so are the statistics.
/// @param model a module holder or shared_ptr, of which a copy is the same module; its forward takes the batches'
/// inputs.
/// @throws DataError the loader gives no batch.
template <class Model, class Loader>
void update_batch_norm(Model model, Loader&& loader) {
  detail::BatchNormUpdate update(*model.operator->());
  if (!update.needed()) return;
  int64_t batches = 0;
  for (const auto& batch : loader) {
    auto inputs =
        std::apply([](const auto&... input) { return std::tuple<std::remove_cvref_t<decltype(input)>...>(input...); },
                   detail::batch_inputs(batch));
    visit_tensors(inputs, [&](at::Tensor& tensor) { detail::move_to(tensor, update.device()); });
    std::apply([&](const auto&... input) { static_cast<void>(model->forward(input...)); }, inputs);
    ++batches;
  }
  update.finish(batches);
}

}  // namespace saturate
