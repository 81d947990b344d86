// SPDX-License-Identifier: Apache-2.0
#include "saturate/observe/flop_counter.hpp"

#include "op_rules.hpp"
#include "saturate/error.hpp"
#include "saturate/observe/timing.hpp"
#include "saturate/recompute/detail/run_block.hpp"

#include <ATen/record_function.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

namespace saturate {
namespace detail {

struct FlopRecord {
  std::mutex mutex;
  std::vector<OpWork> work;
  std::map<std::tuple<std::string, std::string, WorkPhase, std::string>, std::size_t> places;  // in `work`
  std::set<std::string> unknown;
  at::CallbackHandle handle = 0;

  void add(const std::vector<OpWork>& more) {
    const std::lock_guard lock(mutex);
    for (const OpWork& one : more) {
      const auto [place, is_new] =
          places.emplace(std::tuple(one.name, one.shapes, one.phase, one.precision), work.size());
      if (is_new) {
        work.push_back(one);
        continue;
      }
      OpWork& sum = work[place->second];
      sum.calls += one.calls;
      sum.flops += one.flops;
      sum.bytes += one.bytes;
      sum.seconds += one.seconds;
    }
  }
};

}  // namespace detail

namespace {

std::atomic<detail::FlopRecord*> active_flop_record = nullptr;

// An autograd node that this thread is in; and whether it was inside of a recomputed block already when it began. A
// block that is run again is entered within a node.
struct NodeFrame final : at::ObserverContext {
  bool began_inside = detail::inside_block();
  NodeFrame* outer = nullptr;
};
thread_local NodeFrame* innermost_node = nullptr;

WorkPhase phase_now() {
  if (innermost_node == nullptr) return WorkPhase::forward;
  return detail::inside_block() && !innermost_node->began_inside ? WorkPhase::recompute : WorkPhase::backward;
}

// An operator that runs. Work belongs to the innermost operator that does it: to a product unless another product runs
// in it (autocast, composite operators), and to any other operator unless something in it does work.
struct OpFrame final : at::ObserverContext {
  const detail::OpRule* rule = nullptr;
  std::optional<detail::OpFacts> facts = {};
  WorkPhase phase = WorkPhase::forward;
  OpFrame* outer = nullptr;
  bool has_product = false;
  std::vector<OpWork> inside = {};
  Stopwatch watch = {};
};
thread_local OpFrame* innermost_op = nullptr;

std::unique_ptr<at::ObserverContext> flop_op_begins(const at::RecordFunction& op) {
  if (op.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    auto node = std::make_unique<NodeFrame>();
    node->outer = std::exchange(innermost_node, node.get());
    return node;
  }
  if (!op.operator_name() || active_flop_record == nullptr) return nullptr;
  auto frame = std::make_unique<OpFrame>();
  frame->rule = &detail::OpRule::of(op);
  {
    const at::DisableRecordFunctionGuard unseen;  // questions about tensors are operators too
    frame->facts.emplace(*frame->rule, op.inputs());
  }
  frame->phase = phase_now();
  frame->outer = std::exchange(innermost_op, frame.get());
  frame->watch.restart();
  return frame;
}

OpWork work_of(const at::RecordFunction& op, OpFrame& frame, double seconds) {
  const at::DisableRecordFunctionGuard unseen;
  detail::OpFacts& facts = *frame.facts;
  facts.finish(*frame.rule, op.outputs());
  OpWork work{frame.rule->name, std::move(facts.shapes), frame.phase};
  work.calls = 1;
  work.bytes = facts.bytes;
  work.flops = facts.flops;
  if (work.flops > 0) work.precision = std::move(facts.precision);
  if (!facts.on_device) work.seconds = seconds;
  return work;
}

void end_op(const at::RecordFunction& op, OpFrame& frame) {
  const double seconds = frame.watch.seconds();
  innermost_op = frame.outer;
  detail::FlopRecord* record = active_flop_record;
  if (record == nullptr) return;
  const bool product = frame.rule->product != detail::Product::none;
  if (product ? !frame.has_product : frame.inside.empty()) {
    OpWork own = work_of(op, frame, seconds);
    const bool works = own.flops > 0 || own.bytes > 0;
    if (works) frame.inside.assign(1, std::move(own));
  }
  if (frame.rule->product == detail::Product::unknown) {
    const std::lock_guard lock(record->mutex);
    record->unknown.insert(frame.rule->name);
  }
  if (frame.outer == nullptr) {
    record->add(frame.inside);
    return;
  }
  frame.outer->has_product = frame.outer->has_product || product || frame.has_product;
  std::move(frame.inside.begin(), frame.inside.end(), std::back_inserter(frame.outer->inside));
}

void flop_op_ends(const at::RecordFunction& op, at::ObserverContext* context) {
  if (context == nullptr) return;
  if (op.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    innermost_node = static_cast<NodeFrame*>(context)->outer;
  } else {
    end_op(op, *static_cast<OpFrame*>(context));
  }
}

}  // namespace

FlopCounter::FlopCounter() : record_(std::make_unique<detail::FlopRecord>()) {
  detail::FlopRecord* none = nullptr;
  if (!active_flop_record.compare_exchange_strong(none, record_.get())) {
    throw Error("FlopCounter: another one is observing in this process; use one at a time");
  }
  record_->handle = at::addGlobalCallback(at::RecordFunctionCallback(&flop_op_begins, &flop_op_ends)
                                              .needsInputs(true)
                                              .needsOutputs(true)
                                              .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

FlopCounter::~FlopCounter() {
  active_flop_record = nullptr;
  at::removeCallback(record_->handle);
}

std::vector<OpWork> FlopCounter::work() const {
  const std::lock_guard lock(record_->mutex);
  return record_->work;
}

int64_t FlopCounter::flops(WorkPhase phase) const {
  int64_t sum = 0;
  for (const OpWork& one : work()) sum += one.phase == phase ? one.flops : 0;
  return sum;
}

int64_t FlopCounter::model_flops() const { return flops(WorkPhase::forward) + flops(WorkPhase::backward); }
int64_t FlopCounter::hardware_flops() const { return model_flops() + flops(WorkPhase::recompute); }

int64_t FlopCounter::bytes() const {
  int64_t sum = 0;
  for (const OpWork& one : work()) sum += one.bytes;
  return sum;
}

std::vector<std::string> FlopCounter::unknown() const {
  const std::lock_guard lock(record_->mutex);
  return {record_->unknown.begin(), record_->unknown.end()};
}

void FlopCounter::clear() {
  const std::lock_guard lock(record_->mutex);
  record_->work.clear();
  record_->places.clear();
  record_->unknown.clear();
}

}  // namespace saturate
