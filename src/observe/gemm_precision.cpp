// SPDX-License-Identifier: Apache-2.0
#include "saturate/observe/gemm_precision.hpp"

#include "part_tracker.hpp"
#include "saturate/error.hpp"

#include <ATen/Context.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <sstream>
#include <string_view>

namespace saturate {
namespace detail {

struct GemmRecord {
  std::mutex mutex;
  std::vector<GemmUse> uses;
  PartTracker parts;
  BackwardNodes nodes;
  at::CallbackHandle handle = 0;
};

}  // namespace detail

namespace {

std::atomic<detail::GemmRecord*> active_record = nullptr;

enum class Kind { none, matmul, convolution };

Kind kind_of(std::string_view name) {
  if (name.substr(0, 6) != "aten::") return Kind::none;
  static const std::set<std::string_view> matmuls = {"aten::mm",
                                                     "aten::addmm",
                                                     "aten::bmm",
                                                     "aten::baddbmm",
                                                     "aten::addbmm",
                                                     "aten::mv",
                                                     "aten::addmv",
                                                     "aten::_addmm_activation",
                                                     "aten::mkldnn_linear",
                                                     "aten::linear",
                                                     "aten::matmul",
                                                     "aten::linear_backward",
                                                     "aten::_grouped_mm"};
  if (matmuls.contains(name) || name.find("_attention") != std::string_view::npos) return Kind::matmul;
  if (name.find("conv") != std::string_view::npos && name.find("convert") == std::string_view::npos) {
    return Kind::convolution;
  }
  return Kind::none;
}

std::string float32_precision(const at::Tensor& tensor, Kind kind) {
  const auto backend = tensor.is_cuda() ? at::Float32Backend::CUDA : at::Float32Backend::MKLDNN;
  const auto op = kind == Kind::matmul ? at::Float32Op::MATMUL : at::Float32Op::CONV;
  switch (at::globalContext().float32Precision(backend, op)) {
    case at::Float32Precision::TF32: return "tf32";
    case at::Float32Precision::BF16: return "bfloat16";
    default: return "float32";
  }
}

std::string precision_of(const at::RecordFunction& op, Kind kind) {
  for (const c10::IValue& input : op.inputs()) {
    if (!input.isTensor() || !input.toTensor().defined()) continue;
    const at::Tensor& tensor = input.toTensor();
    switch (tensor.scalar_type()) {
      case at::kFloat: return float32_precision(tensor, kind);
      case at::kBFloat16: return "bfloat16";
      case at::kHalf: return "float16";
      case at::kDouble: return "float64";
      default: continue;
    }
  }
  return {};
}

// One product runs as several operators inside one another, and autocast casts between two of them: the innermost is
// the one that is computed.
struct Product final : at::ObserverContext {
  GemmUse use;
  bool has_inner = false;
  Product* outer = nullptr;
};
thread_local Product* innermost = nullptr;

std::unique_ptr<at::ObserverContext> op_begins(const at::RecordFunction& op) {
  const Kind kind = op.operator_name() ? kind_of(op.name()) : Kind::none;
  detail::GemmRecord* record = active_record;
  if (kind == Kind::none || record == nullptr) return nullptr;
  auto product = std::make_unique<Product>();
  product->use = {record->parts.current(), op.name(), detail::BackwardNodes::innermost() != nullptr,
                  precision_of(op, kind), 1};
  product->outer = innermost;
  if (innermost != nullptr) innermost->has_inner = true;
  innermost = product.get();
  return product;
}

void op_ends(const at::RecordFunction&, at::ObserverContext* context) {
  auto* product = static_cast<Product*>(context);
  if (product == nullptr) return;
  innermost = product->outer;
  detail::GemmRecord* record = active_record;
  if (product->has_inner || record == nullptr || product->use.precision.empty()) return;
  const std::lock_guard lock(record->mutex);
  const GemmUse& use = product->use;
  const auto same = [&](const GemmUse& other) {
    return other.module == use.module && other.op == use.op && other.backward == use.backward &&
           other.precision == use.precision;
  };
  const auto found = std::find_if(record->uses.begin(), record->uses.end(), same);
  if (found == record->uses.end()) {
    record->uses.push_back(use);
  } else {
    ++found->calls;
  }
}

}  // namespace

GemmPrecision::GemmPrecision(const torch::nn::Module& model)
    : record_(std::make_unique<detail::GemmRecord>()), scope_(marks::bind(model), &record_->parts) {
  detail::GemmRecord* none = nullptr;
  if (!active_record.compare_exchange_strong(none, record_.get())) {
    throw Error("GemmPrecision: another one is observing in this process; use one at a time");
  }
  record_->handle = at::addGlobalCallback(
      at::RecordFunctionCallback(&op_begins, &op_ends).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

GemmPrecision::~GemmPrecision() {
  active_record = nullptr;
  at::removeCallback(record_->handle);
}

std::vector<GemmUse> GemmPrecision::uses() const {
  const std::lock_guard lock(record_->mutex);
  return record_->uses;
}

std::string GemmPrecision::table() const {
  const std::vector<GemmUse> all = uses();
  std::size_t width = 6, op_width = 2;
  for (const GemmUse& use : all) {
    width = std::max(width, use.module.size());
    op_width = std::max(op_width, use.op.size());
  }
  const auto padded = [](std::string text, std::size_t size) {
    return text.append(size - std::min(size, text.size()), ' ');
  };
  std::ostringstream out;
  out << padded("module", width) << "  " << padded("op", op_width) << "  direction  precision  calls\n";
  for (const GemmUse& use : all) {
    out << padded(use.module, width) << "  " << padded(use.op, op_width) << "  "
        << padded(use.backward ? "backward" : "forward", 9) << "  " << padded(use.precision, 9) << "  " << use.calls
        << '\n';
  }
  return out.str();
}

}  // namespace saturate
