// SPDX-License-Identifier: Apache-2.0
#include "part_tracker.hpp"

#include <ATen/SequenceNumber.h>

#include <iterator>

namespace saturate::detail {
namespace {

thread_local std::vector<BackwardNode> nodes;

std::unique_ptr<at::ObserverContext> node_begins(const at::RecordFunction& node) {
  nodes.push_back({node.name(), node.seqNr()});
  return nullptr;
}

void node_ends(const at::RecordFunction&, at::ObserverContext*) {
  if (!nodes.empty()) nodes.pop_back();
}

}  // namespace

BackwardNodes::BackwardNodes()
    : handle_(at::addGlobalCallback(
          at::RecordFunctionCallback(&node_begins, &node_ends).scopes({at::RecordScope::BACKWARD_FUNCTION}))) {}

BackwardNodes::~BackwardNodes() { at::removeCallback(handle_); }

const BackwardNode* BackwardNodes::innermost() { return nodes.empty() ? nullptr : &nodes.back(); }

void PartTracker::note() {
  owners_[static_cast<int64_t>(at::sequence_number::peek())] = inside_.empty() ? std::string() : inside_.back();
}

void PartTracker::enter(const std::vector<std::string>& names, const torch::nn::Module&) {
  const std::lock_guard lock(mutex_);
  inside_.push_back(names.front());
  note();
}

void PartTracker::leave(const std::vector<std::string>&, const torch::nn::Module&) noexcept {
  const std::lock_guard lock(mutex_);
  inside_.pop_back();
  note();
}

std::string PartTracker::current() const {
  const BackwardNode* node = BackwardNodes::innermost();
  if (node != nullptr) return owner_of(node->sequence_number);
  const std::lock_guard lock(mutex_);
  return inside_.empty() ? std::string() : inside_.back();
}

std::string PartTracker::owner_of(int64_t sequence_number) const {
  const std::lock_guard lock(mutex_);
  const auto after = owners_.upper_bound(sequence_number);
  return after == owners_.begin() ? std::string() : std::prev(after)->second;
}

}  // namespace saturate::detail
