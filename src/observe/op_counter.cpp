// SPDX-License-Identifier: Apache-2.0
#include "saturate/observe/op_counter.hpp"

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <string_view>
#include <thread>

namespace saturate {

namespace detail {

struct OpRecord {
  OpCounterOptions options;
  std::thread::id owner = std::this_thread::get_id();
  mutable std::mutex mutex;
  std::vector<std::string> operators;
  std::map<std::string, int64_t> reads;
};

}  // namespace detail

namespace {

using Counter = std::shared_ptr<detail::OpRecord>;

// LibTorch's callbacks are plain functions, so the counters that live are in one list; one callback serves them all.
struct Registry {
  std::mutex mutex;
  std::vector<Counter> counters;
  at::CallbackHandle handle = 0;
};

Registry& registry() {
  static auto* instance = new Registry;  // operators may still run while the process ends
  return *instance;
}

// Depth of operators on this thread in which reads are not counted again: a read itself, and a fused optimizer kernel.
thread_local int64_t quiet_depth = 0;

struct QuietScope final : at::ObserverContext {
  QuietScope() { ++quiet_depth; }
  ~QuietScope() override { --quiet_depth; }
};

bool blocking_copy_to_host(const at::RecordFunction& op) {
  const auto inputs = op.inputs();  // copy_(self, src, non_blocking)
  if (inputs.size() < 2 || !inputs[0].isTensor() || !inputs[1].isTensor()) return false;
  const auto& to = inputs[0].toTensor();
  const auto& from = inputs[1].toTensor();
  if (!to.defined() || !from.defined() || !to.is_cpu() || from.is_cpu()) return false;
  const bool asked_not_to_block = inputs.size() > 2 && inputs[2].isBool() && inputs[2].toBool();
  const at::DisableRecordFunctionGuard unseen;  // is_pinned is an operator too
  return !(asked_not_to_block && to.is_pinned());
}

// `_to_copy` is not in the list: it calls `copy_`, which is seen with both devices.
bool reads_host(const at::RecordFunction& op, std::string_view name) {
  static const std::set<std::string_view> readers = {"aten::_local_scalar_dense",
                                                     "aten::is_nonzero",
                                                     "aten::equal",
                                                     "aten::nonzero",
                                                     "aten::masked_select",
                                                     "aten::_unique2",
                                                     "aten::unique_dim",
                                                     "aten::unique_consecutive",
                                                     "aten::bincount",
                                                     "aten::_unique"};
  return readers.count(name) != 0 || (name == "aten::copy_" && blocking_copy_to_host(op));
}

bool is_fused_optimizer(std::string_view name) { return name.substr(0, 13) == "aten::_fused_"; }

void record(const std::string& name, bool read) {
  auto& all = registry();
  const std::lock_guard registry_lock(all.mutex);
  for (const auto& counter : all.counters) {
    if (counter->options.this_thread_only && counter->owner != std::this_thread::get_id()) continue;
    const std::lock_guard lock(counter->mutex);
    counter->operators.push_back(name);
    if (read) ++counter->reads[name];
  }
}

std::unique_ptr<at::ObserverContext> on_operator(const at::RecordFunction& op) {
  // Backward nodes and ranges that a program names itself have no schema: they are no operators.
  if (!op.operator_name()) return nullptr;
  const std::string name = op.name();
  const bool read = reads_host(op, name);
  record(name, read && quiet_depth == 0);
  if (read || is_fused_optimizer(name)) return std::make_unique<QuietScope>();
  return nullptr;
}

}  // namespace

OpCounter::OpCounter(OpCounterOptions options) : record_(std::make_shared<detail::OpRecord>()) {
  record_->options = options;
  auto& all = registry();
  const std::lock_guard lock(all.mutex);
  all.counters.push_back(record_);
  if (all.counters.size() > 1) return;
  all.handle = at::addGlobalCallback(
      at::RecordFunctionCallback(on_operator).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

OpCounter::~OpCounter() {
  auto& all = registry();
  const std::lock_guard lock(all.mutex);
  all.counters.erase(std::find(all.counters.begin(), all.counters.end(), record_));
  if (all.counters.empty()) at::removeCallback(all.handle);
}

std::vector<std::string> OpCounter::operators() const {
  const std::lock_guard lock(record_->mutex);
  return record_->operators;
}

std::map<std::string, int64_t> OpCounter::counts() const {
  std::map<std::string, int64_t> result;
  for (const auto& name : operators()) ++result[name];
  return result;
}

int64_t OpCounter::count(const std::string& name) const {
  const std::lock_guard lock(record_->mutex);
  return std::count(record_->operators.begin(), record_->operators.end(), name);
}

int64_t OpCounter::total() const {
  const std::lock_guard lock(record_->mutex);
  return static_cast<int64_t>(record_->operators.size());
}

int64_t OpCounter::host_reads() const {
  int64_t total = 0;
  for (const auto& entry : host_reads_by_name()) total += entry.second;
  return total;
}

std::map<std::string, int64_t> OpCounter::host_reads_by_name() const {
  const std::lock_guard lock(record_->mutex);
  return record_->reads;
}

void OpCounter::clear() {
  const std::lock_guard lock(record_->mutex);
  record_->operators.clear();
  record_->reads.clear();
}

}  // namespace saturate
