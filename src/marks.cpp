// SPDX-License-Identifier: Apache-2.0
#include "saturate/marks.hpp"

#include <ATen/autocast_mode.h>
#include <torch/nn/module.h>

#include <algorithm>

namespace saturate::marks {
namespace detail {
thread_local constinit Scope* active = nullptr;
}  // namespace detail

namespace {

// By hand, because named_modules() leaves out a module's second name and refuses a root that no shared_ptr owns.
template <class Visit>
void walk(const torch::nn::Module& module, const std::string& name, Visit& visit) {
  visit(module, name);
  for (const auto& child : module.named_children()) {
    walk(*child.value(), name.empty() ? child.key() : name + "." + child.key(), visit);
  }
}

}  // namespace

const std::vector<std::string>* Names::find(const torch::nn::Module* module) const {
  const auto found = names_.find(module);
  return found == names_.end() ? nullptr : &found->second;
}

std::shared_ptr<const Names> bind(const torch::nn::Module& root) {
  auto names = std::make_shared<Names>();
  auto take = [&](const torch::nn::Module& module, const std::string& name) {
    names->names_[&module].push_back(name);
    names->all_.push_back(name);
  };
  walk(root, "", take);
  return names;
}

Scope::Scope(std::shared_ptr<const Names> names, Observer* observer)
    : names_(std::move(names)), observer_(observer), outer_(detail::active) {
  detail::active = this;
}

Scope::~Scope() { detail::active = outer_; }

bool Scope::enter(const torch::nn::Module& module) {
  const auto* names = names_->find(&module);
  if (names == nullptr) return false;  // not part of the bound model: no name, nothing to act on
  stack_.push_back(names);
  try {
    if (observer_ != nullptr) observer_->enter(*names, module);
  } catch (...) {
    stack_.pop_back();
    throw;
  }
  return true;
}

void Scope::leave(const torch::nn::Module& module) noexcept {
  if (observer_ != nullptr) observer_->leave(*stack_.back(), module);
  stack_.pop_back();
}

std::string_view current() {
  for (const Scope* scope = detail::active; scope != nullptr; scope = scope->outer_) {
    if (!scope->stack_.empty()) return scope->stack_.back()->front();
  }
  return {};
}

Part::Part(Scope& innermost, const torch::nn::Module& module) : module_(module) {
  std::vector<Scope*> scopes;
  for (Scope* scope = &innermost; scope != nullptr; scope = scope->outer_) scopes.push_back(scope);
  try {
    for (auto scope = scopes.rbegin(); scope != scopes.rend(); ++scope) {
      if (!(*scope)->enter(module)) continue;
      entered_.push_back(*scope);
      const Observer* observer = (*scope)->observer_;
      keeps_fp32_ = keeps_fp32_ || (observer != nullptr && observer->keeps_fp32(module));
      recomputes_ = recomputes_ || (observer != nullptr && observer->recomputes(module));
    }
  } catch (...) {
    for (; !entered_.empty(); entered_.pop_back()) entered_.back()->leave(module_);
    throw;
  }
}

Part::~Part() {
  for (; !entered_.empty(); entered_.pop_back()) entered_.back()->leave(module_);
}

Snapshot::Snapshot() {
  for (const Scope* scope = detail::active; scope != nullptr; scope = scope->outer_) {
    levels_.push_back(
        {scope->names_, scope->observer_ == nullptr ? nullptr : scope->observer_->lasting(), scope->stack_});
  }
  std::reverse(levels_.begin(), levels_.end());
}

Snapshot::Again::Again(const Snapshot& snapshot) : replaced_(detail::active) {
  detail::active = nullptr;
  for (const Level& level : snapshot.levels_) {
    scopes_.push_back(std::make_unique<Scope>(level.names, level.observer.get()));
    scopes_.back()->stack_ = level.stack;
  }
}

Snapshot::Again::~Again() {
  while (!scopes_.empty()) scopes_.pop_back();
  detail::active = replaced_;
}

namespace detail {
namespace {
bool narrow_float(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }
}  // namespace

void IslandScope::input(at::Tensor& tensor) {
  if (!tensor.defined()) return;
  if (!any_) device_ = tensor.device().type();
  any_ = true;
  if (!narrow_float(tensor.scalar_type())) return;
  if (!narrow_) narrow_ = tensor.scalar_type();
  tensor = tensor.to(at::kFloat);
}

void IslandScope::open() { off_.emplace(device_, at::autocast::get_autocast_dtype(device_), /*enabled=*/false); }

void IslandScope::output(at::Tensor& tensor) const {
  if (narrow_ && tensor.defined() && tensor.scalar_type() == at::kFloat) tensor = tensor.to(*narrow_);
}
}  // namespace detail

}  // namespace saturate::marks
