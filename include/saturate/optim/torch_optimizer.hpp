// SPDX-License-Identifier: Apache-2.0
// Lets the Trainer take LibTorch's own optimizers.
#pragma once

#include "saturate/optim/optimizer.hpp"

#include <concepts>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::optim {
class Optimizer;
class LBFGS;
}  // namespace torch::optim

namespace saturate::optim {

/// A torch::optim optimizer behind saturate's interface. Its step cannot be refused on the device, so a policy that may
/// refuse one (a device-side count, clipping) costs a host read a step here, which is warned about once.
class TorchOptimizer final : public Optimizer {
 public:
  using Optimizer::step;
  explicit TorchOptimizer(std::shared_ptr<torch::optim::Optimizer> optimizer);
  ~TorchOptimizer() override;

  void step(const StepArgs& args) override;
  void zero_grad(bool set_to_none = true) override;
  std::vector<at::Tensor> parameters() const override;
  std::vector<std::size_t> groups() const override;
  double lr(std::size_t group = 0) const override;
  void set_lr(double lr, std::size_t group = 0) override;
  void name_parameters(const NamedTensors&) override {}
  /// @throws StateError always: save it with torch::save, its state is not kept by name.
  OptimizerState state() const override;
  void load_state(const OptimizerState& state) override;
  /// Of Adam, AdamW, SGD, RMSprop and Adagrad; zeros for any other.
  StateBytes state_bytes() const override;
  bool refuses_on_device() const override { return false; }
  const torch::optim::Optimizer& torch_optimizer() const { return *optimizer_; }

 private:
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  std::vector<double> base_lrs_;
};

namespace detail {

template <class O>
concept IsTorchOptimizer = std::derived_from<O, torch::optim::Optimizer>;
template <class O>
concept IsOptimizer = std::derived_from<O, Optimizer>;

template <class O>
struct CheckOptimizer {
  static_assert(IsOptimizer<O> || IsTorchOptimizer<O>,
                "saturate: the second argument of Trainer is an optimizer: one of saturate::optim or torch::optim, by "
                "value (moved), std::ref or std::unique_ptr (docs/policies.md#optimizers)");
};
template <class O>
struct CheckNoClosure {
  static_assert(!std::is_same_v<O, torch::optim::LBFGS>,
                "saturate: LBFGS evaluates the model several times a step through a closure, which the Trainer's step "
                "has no place for; write the loop by hand (docs/limitations.md)");
};
template <class O>
struct CheckMovable {
  static_assert(!std::is_lvalue_reference_v<O>,
                "saturate: optimizers do not copy; give the Trainer std::move(optimizer) or std::ref(optimizer) "
                "(docs/policies.md#optimizers)");
};

template <class T>
inline constexpr bool is_reference_wrapper = false;
template <class T>
inline constexpr bool is_reference_wrapper<std::reference_wrapper<T>> = true;
template <class T>
inline constexpr bool is_unique_ptr = false;
template <class T>
inline constexpr bool is_unique_ptr<std::unique_ptr<T>> = true;

template <class O>
std::shared_ptr<Optimizer> share(std::shared_ptr<O> optimizer) {
  using checked = std::integral_constant<std::size_t, sizeof(CheckOptimizer<O>) + sizeof(CheckNoClosure<O>)>;
  static_cast<void>(checked::value);
  if constexpr (IsOptimizer<O>) {
    return optimizer;
  } else if constexpr (IsTorchOptimizer<O>) {
    return std::make_shared<TorchOptimizer>(std::move(optimizer));
  } else {
    return nullptr;
  }
}

/// By value, std::ref and std::unique_ptr alike.
template <class O>
std::shared_ptr<Optimizer> own(O&& optimizer) {
  using Plain = std::remove_cvref_t<O>;
  if constexpr (is_reference_wrapper<Plain>) {
    using Referred = typename Plain::type;
    return share(std::shared_ptr<Referred>(&optimizer.get(), [](Referred*) {}));
  } else if constexpr (is_unique_ptr<Plain>) {
    return share(std::shared_ptr<typename Plain::element_type>(std::move(optimizer)));
  } else if constexpr (std::is_lvalue_reference_v<O>) {
    using checked = std::integral_constant<std::size_t, sizeof(CheckMovable<O>)>;
    static_cast<void>(checked::value);
    return nullptr;
  } else if constexpr (IsOptimizer<Plain> || IsTorchOptimizer<Plain>) {
    return share(std::make_shared<Plain>(std::move(optimizer)));
  } else {
    using checked = std::integral_constant<std::size_t, sizeof(CheckOptimizer<Plain>)>;
    static_cast<void>(checked::value);
    return nullptr;
  }
}

}  // namespace detail
}  // namespace saturate::optim
