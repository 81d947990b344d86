// SPDX-License-Identifier: Apache-2.0
#include "nan_tracer.hpp"

#include "saturate/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isinf.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <set>
#include <string_view>

namespace saturate::detail {
namespace {

std::atomic<NanTracer*> active_tracer = nullptr;

// Looking at a tensor runs operators: unseen, without autograd, and without autocast.
struct Unseen {
  at::DisableRecordFunctionGuard unseen;
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{at::autocast_dispatch_keyset};
};

struct Values {
  bool nan = false, inf = false;
  double min = std::numeric_limits<double>::infinity(), max = -std::numeric_limits<double>::infinity();
  std::string dtype;
};

void look_at(const at::Tensor& tensor, Values& values, bool range) {
  if (!tensor.defined() || !at::isFloatingType(tensor.scalar_type()) || tensor.numel() == 0 || tensor.is_sparse() ||
      tensor.is_meta()) {
    return;
  }
  values.dtype = c10::toString(tensor.scalar_type());
  const at::Tensor plain = tensor.detach();
  values.nan = values.nan || at::isnan(plain).any().item<bool>();
  values.inf = values.inf || at::isinf(plain).any().item<bool>();
  if (!range) return;
  const at::Tensor finite = plain.masked_select(at::isfinite(plain));
  if (finite.numel() == 0) return;
  const auto [low, high] = at::aminmax(finite);
  values.min = std::min(values.min, low.item<double>());
  values.max = std::max(values.max, high.item<double>());
}

Values look_at(c10::ArrayRef<const c10::IValue> items, bool range) {
  Values values;
  for (const c10::IValue& item : items) {
    if (item.isTensor()) look_at(item.toTensor(), values, range);
    if (item.isTensorList()) {
      for (const at::Tensor& tensor : item.toTensorVector()) look_at(tensor, values, range);
    }
    if (item.isOptionalTensorList()) {
      for (const auto& tensor : item.toOptionalTensorVector()) {
        if (tensor) look_at(*tensor, values, range);
      }
    }
  }
  return values;
}

// Their outputs are not written yet.
bool leaves_memory_unwritten(std::string_view name) {
  static const std::set<std::string_view> names = {
      "aten::empty",      "aten::empty_like",        "aten::empty_strided", "aten::new_empty",
      "aten::resize_",    "aten::new_empty_strided", "aten::set_",          "aten::empty_permuted",
      "aten::resize_as_", "aten::resize_output_"};
  return names.contains(name);
}

// An infinity written on purpose, as masks of attention are.
bool writes_a_constant(std::string_view name) {
  static const std::set<std::string_view> names = {"aten::full",          "aten::full_like",   "aten::new_full",
                                                   "aten::fill_",         "aten::masked_fill", "aten::masked_fill_",
                                                   "aten::scalar_tensor", "aten::where",       "aten::constant_pad_nd"};
  return names.contains(name);
}

bool has_infinite_scalar(c10::ArrayRef<const c10::IValue> items) {
  for (const c10::IValue& item : items) {
    if (item.isDouble() && std::isinf(item.toDouble())) return true;
  }
  return false;
}

struct OpContext final : at::ObserverContext {
  Values inputs;
  bool excused = false;
};

}  // namespace

struct TracerCallbacks {
  static std::unique_ptr<at::ObserverContext> op_begins(const at::RecordFunction& op) {
    const NanTracer* tracer = active_tracer;
    if (tracer == nullptr || !op.operator_name() || leaves_memory_unwritten(op.name())) return nullptr;
    {
      const std::lock_guard lock(tracer->mutex_);
      if (tracer->first_) return nullptr;
    }
    const Unseen unseen;
    auto context = std::make_unique<OpContext>();
    context->inputs = look_at(op.inputs(), /*range=*/true);
    context->excused = writes_a_constant(op.name()) && has_infinite_scalar(op.inputs());
    return context;
  }

  static void op_ends(const at::RecordFunction& op, at::ObserverContext* raw) {
    auto* context = static_cast<OpContext*>(raw);
    NanTracer* tracer = active_tracer;
    if (context == nullptr || tracer == nullptr) return;
    const Unseen unseen;
    const Values& in = context->inputs;
    const Values out =
        look_at(c10::ArrayRef<const c10::IValue>(op.outputs().data(), op.outputs().size()), /*range=*/false);
    const bool new_nan = out.nan && !in.nan;
    const bool new_inf = out.inf && !in.inf && !in.nan && !context->excused;
    if (!new_nan && !new_inf) return;
    const BackwardNode* node = BackwardNodes::innermost();
    const std::lock_guard lock(tracer->mutex_);
    if (tracer->first_) return;
    tracer->first_ = {.module = tracer->parts_.current(),
                      .op = op.name(),
                      .node = node == nullptr ? std::string() : node->name,
                      .dtype = out.dtype,
                      .backward = node != nullptr,
                      .input_min = in.min,
                      .input_max = in.max};
  }

  static std::unique_ptr<at::ObserverContext> node_begins(const at::RecordFunction& node) {
    NanTracer* tracer = active_tracer;
    if (tracer == nullptr) return nullptr;
    {
      const std::lock_guard lock(tracer->mutex_);
      if (tracer->first_ || tracer->receiver_) return nullptr;
    }
    const Unseen unseen;
    const Values in = look_at(node.inputs(), /*range=*/true);
    if (!in.nan && !in.inf) return nullptr;
    const std::lock_guard lock(tracer->mutex_);
    tracer->receiver_ = {.module = tracer->parts_.owner_of(node.seqNr()),
                         .op = {},
                         .node = node.name(),
                         .dtype = in.dtype,
                         .backward = true,
                         .input_min = in.min,
                         .input_max = in.max};
    return nullptr;
  }
};

NanTracer::NanTracer() {
  NanTracer* none = nullptr;
  if (!active_tracer.compare_exchange_strong(none, this)) {
    throw Error("NanGuard: another window is being traced in this process; trace one at a time");
  }
  handles_.push_back(
      at::addGlobalCallback(at::RecordFunctionCallback(&TracerCallbacks::op_begins, &TracerCallbacks::op_ends)
                                .needsInputs(true)
                                .needsOutputs(true)
                                .scopes({at::RecordScope::FUNCTION})));
  handles_.push_back(at::addGlobalCallback(at::RecordFunctionCallback(&TracerCallbacks::node_begins)
                                               .needsInputs(true)
                                               .scopes({at::RecordScope::BACKWARD_FUNCTION})));
}

NanTracer::~NanTracer() {
  active_tracer = nullptr;
  for (const auto handle : handles_) at::removeCallback(handle);
}

}  // namespace saturate::detail
