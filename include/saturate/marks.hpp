// SPDX-License-Identifier: Apache-2.0
// Marks name the parts of a model. LibTorch's C++ modules have no forward hooks, so a model says once where its parts
// are:
//
//   x = st::call(block, x);      // in place of block->forward(x)
//
// and everything that acts on parts finds them by name ("encoder.layers.3.norm"). With nothing asked for, a call costs
// one thread-local read.
#pragma once

#include "saturate/for_each_tensor.hpp"
#include "saturate/precision/autocast_scope.hpp"
#include "saturate/recompute/detail/run_block.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace saturate {
namespace marks {

/// The names of a model's modules, as registered: "" is the root, "block.0.norm" a part. A module that is registered
/// twice has both names.
class Names {
 public:
  /// nullptr when the module is not part of the bound model.
  const std::vector<std::string>* find(const torch::nn::Module* module) const;
  const std::vector<std::string>& all() const { return all_; }
  const std::unordered_map<const torch::nn::Module*, std::vector<std::string>>& by_module() const { return names_; }

 private:
  friend std::shared_ptr<const Names> bind(const torch::nn::Module& root);
  std::unordered_map<const torch::nn::Module*, std::vector<std::string>> names_;
  std::vector<std::string> all_;
};

/// Takes down the names of `root` and everything registered in it. The Trainer does this for its model.
std::shared_ptr<const Names> bind(const torch::nn::Module& root);

/// Told when execution enters and leaves a marked part.
class Observer {
 public:
  virtual ~Observer() = default;
  /// @param names all names of the part; the first is its registered one.
  virtual void enter(const std::vector<std::string>& names, const torch::nn::Module& module) = 0;
  /// Also when an exception leaves the part.
  virtual void leave(const std::vector<std::string>& names, const torch::nn::Module& module) noexcept = 0;
  /// Whether the part runs in float32 inside autocast: its inputs are cast, and its outputs cast back.
  virtual bool keeps_fp32(const torch::nn::Module&) const { return false; }
  /// Whether the part is to be recomputed (recompute/recompute.hpp). Asked once a visit, right after enter().
  virtual bool recomputes(const torch::nn::Module&) const { return false; }
  /// What acts again when the part's forward runs again in backward, where the Scope has ended; nullptr: nothing does.
  virtual std::shared_ptr<Observer> lasting() { return nullptr; }
};

/// Turns marks on for this thread while the object lives. Scopes nest: every one that lives is told, the outer ones
/// first. Other threads see nothing of it.
class Scope {
 public:
  Scope(std::shared_ptr<const Names> names, Observer* observer = nullptr);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  friend class Part;
  friend class Snapshot;
  friend std::string_view current();
  bool enter(const torch::nn::Module& module);
  void leave(const torch::nn::Module& module) noexcept;

  std::shared_ptr<const Names> names_;
  Observer* observer_;
  std::vector<const std::vector<std::string>*> stack_;
  Scope* outer_;
};

/// Name of the innermost marked part that this thread is in; "" outside of all and without a Scope.
std::string_view current();

/// One visit of a part.
class Part {
 public:
  Part(Scope& innermost, const torch::nn::Module& module);
  ~Part();
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;
  bool keeps_fp32() const { return keeps_fp32_; }
  bool recomputes() const { return recomputes_; }

 private:
  const torch::nn::Module& module_;
  std::vector<Scope*> entered_;
  bool keeps_fp32_ = false;
  bool recomputes_ = false;
};

/// Where this thread is among the marks, to be there again later: in backward, perhaps on another thread, when the
/// scopes have ended. Observers take part as far as they last (Observer::lasting).
class Snapshot {
 public:
  Snapshot();

  /// Replaces the marks of this thread while it lives.
  class Again {
   public:
    explicit Again(const Snapshot& snapshot);
    ~Again();
    Again(const Again&) = delete;
    Again& operator=(const Again&) = delete;

   private:
    Scope* replaced_;
    std::vector<std::unique_ptr<Scope>> scopes_;  // outer ones first
  };

 private:
  struct Level {
    std::shared_ptr<const Names> names;
    std::shared_ptr<Observer> observer;
    std::vector<const std::vector<std::string>*> stack;
  };
  std::vector<Level> levels_;  // outer ones first
};

namespace detail {
extern thread_local constinit Scope* active;

template <class M>
auto& module_of(M& module) {
  if constexpr (std::is_pointer_v<M>) {
    return *module;
  } else if constexpr (requires { module.operator->(); }) {
    return *module.operator->();  // a module holder, or a shared_ptr
  } else {
    return module;
  }
}

/// Autocast is off while this lives, on the device of the island's first tensor.
class IslandScope {
 public:
  /// Casts a floating tensor of less than 32 bits to float32.
  void input(at::Tensor& tensor);
  void open();
  /// Casts a float32 output to what the inputs were.
  void output(at::Tensor& tensor) const;

 private:
  c10::DeviceType device_ = c10::DeviceType::CPU;
  bool any_ = false;
  std::optional<c10::ScalarType> narrow_;
  std::optional<AutocastScope> off_;
};

template <class M, class... Inputs>
auto run_in_fp32(M& part, const Inputs&... inputs) {
  IslandScope island;
  std::tuple<Inputs...> wide(inputs...);
  visit_tensors(wide, [&](at::Tensor& tensor) { island.input(tensor); });
  island.open();
  auto output = std::apply([&](auto&... input) { return part.forward(input...); }, wide);
  visit_tensors(output, [&](at::Tensor& tensor) { island.output(tensor); });
  return output;
}

/// @param what has forward(): AnyModule for one, which is copied, or the module itself, which the block owns.
template <class Runs, class... Inputs>
auto run_recomputed(const torch::nn::Module& module, Runs what, bool keeps_fp32, const Inputs&... inputs) {
  return saturate::detail::run_block(
      saturate::detail::BlockParts::of(module),
      [what, keeps_fp32](auto&... input) mutable {
        auto& runs = module_of(what);
        return keeps_fp32 ? run_in_fp32(runs, input...) : runs.forward(input...);
      },
      inputs...);
}
}  // namespace detail
}  // namespace marks

/// Runs `module.forward(inputs...)` as a marked part. `module` is a module holder, a shared_ptr to a module or a
/// module.
template <class M, class... Inputs>
auto call(M&& module, Inputs&&... inputs) {
  auto& part = marks::detail::module_of(module);
  marks::Scope* scope = marks::detail::active;
  if (scope == nullptr) return part.forward(std::forward<Inputs>(inputs)...);
  const marks::Part visit(*scope, part);
  if (visit.recomputes()) return marks::detail::run_recomputed(part, &part, visit.keeps_fp32(), inputs...);
  if (visit.keeps_fp32()) return marks::detail::run_in_fp32(part, inputs...);
  return part.forward(std::forward<Inputs>(inputs)...);
}

/// Runs `x` through every module of a torch::nn::Sequential, each as a marked part.
template <class Sequential, class Tensor>
auto call_each(Sequential&& sequential, Tensor x) {
  for (auto& part : marks::detail::module_of(sequential)) {
    marks::Scope* scope = marks::detail::active;
    if (scope == nullptr) {
      x = part.forward(x);
    } else {
      const marks::Part visit(*scope, *part.ptr());
      if (visit.recomputes()) {
        x = marks::detail::run_recomputed(*part.ptr(), part, visit.keeps_fp32(), x);
      } else {
        x = visit.keeps_fp32() ? marks::detail::run_in_fp32(part, x) : part.forward(x);
      }
    }
  }
  return x;
}

/// Runs `x` through every module of a torch::nn::ModuleList whose elements are all `Element`s (TransformerBlockImpl).
template <class Element, class ModuleList, class Tensor>
auto call_each(ModuleList&& list, Tensor x) {
  for (auto& part : marks::detail::module_of(list)) x = call(*part->template as<Element>(), x);
  return x;
}

}  // namespace saturate
