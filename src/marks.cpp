// SPDX-License-Identifier: Apache-2.0
#include "saturate/marks.hpp"

#include <torch/nn/module.h>

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

std::string_view current() {
  const Scope* scope = detail::active;
  return scope == nullptr || scope->stack_.empty() ? std::string_view() : scope->stack_.back()->front();
}

Part::Part(Scope& scope, const torch::nn::Module& module)
    : scope_(scope), module_(module), names_(scope.names_->find(&module)) {
  if (names_ == nullptr) return;  // not part of the bound model: no name, nothing to act on
  scope_.stack_.push_back(names_);
  try {
    if (scope_.observer_ != nullptr) scope_.observer_->enter(*names_, module_);
  } catch (...) {
    scope_.stack_.pop_back();
    throw;
  }
}

Part::~Part() {
  if (names_ == nullptr) return;
  if (scope_.observer_ != nullptr) scope_.observer_->leave(*names_, module_);
  scope_.stack_.pop_back();
}

}  // namespace saturate::marks
