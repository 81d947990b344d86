// SPDX-License-Identifier: Apache-2.0
#include "op_rules.hpp"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <unordered_map>

namespace saturate::detail {
namespace {

using OpInputs = c10::ArrayRef<const c10::IValue>;

Product product_named(std::string_view name) {
  static const std::map<std::string_view, Product> named = {
      {"aten::mm", Product::mm},
      {"aten::bmm", Product::mm},
      {"aten::mv", Product::mm},
      {"aten::_int_mm", Product::mm},
      {"aten::_scaled_mm", Product::mm},
      {"aten::addmm", Product::added_mm},
      {"aten::addmm_", Product::added_mm},
      {"aten::_addmm_activation", Product::added_mm},
      {"aten::baddbmm", Product::added_mm},
      {"aten::baddbmm_", Product::added_mm},
      {"aten::addmv", Product::added_mm},
      {"aten::addmv_", Product::added_mm},
      {"aten::convolution", Product::convolution},
      {"aten::convolution_backward", Product::convolution_backward},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", Product::attention},
      {"aten::_scaled_dot_product_flash_attention", Product::attention},
      {"aten::_scaled_dot_product_efficient_attention", Product::attention},
      {"aten::_scaled_dot_product_cudnn_attention", Product::attention},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", Product::attention_backward},
      {"aten::_scaled_dot_product_flash_attention_backward", Product::attention_backward},
      {"aten::_scaled_dot_product_efficient_attention_backward", Product::attention_backward},
      {"aten::_scaled_dot_product_cudnn_attention_backward", Product::attention_backward},
  };
  const auto found = named.find(name);
  if (found != named.end()) return found->second;
  static const std::set<std::string_view> opaque = {"aten::_cudnn_rnn",
                                                    "aten::_cudnn_rnn_backward",
                                                    "aten::mkldnn_rnn_layer",
                                                    "aten::mkldnn_rnn_layer_backward",
                                                    "aten::_grouped_mm",
                                                    "aten::_weight_int8pack_mm",
                                                    "aten::addbmm",
                                                    "aten::addbmm_",
                                                    "aten::addr",
                                                    "aten::_flash_attention_forward",
                                                    "aten::_efficient_attention_forward"};
  const bool quantized =
      name.starts_with("quantized::") && (name.find("linear") != name.npos || name.find("conv") != name.npos);
  return opaque.contains(name) || quantized ? Product::unknown : Product::none;
}

// They make tensors without filling them, or change what is said about them.
bool touches_values(std::string_view name) {
  static const std::set<std::string_view> idle = {
      "aten::empty",         "aten::empty_like",     "aten::empty_strided", "aten::empty_permuted",
      "aten::new_empty",     "aten::resize_",        "aten::set_",          "aten::new_empty_strided",
      "aten::detach_",       "aten::requires_grad_", "aten::lift_fresh",    "aten::is_same_size",
      "aten::record_stream", "aten::resize_as_"};
  return !idle.contains(name);
}

// What they change they do not read.
bool overwrites(std::string_view name) {
  static const std::set<std::string_view> overwriting = {"aten::copy_",      "aten::fill_",       "aten::zero_",
                                                         "aten::normal_",    "aten::uniform_",    "aten::random_",
                                                         "aten::bernoulli_", "aten::exponential_"};
  return overwriting.contains(name);
}

bool reads_rows_only(std::string_view name) {
  static const std::set<std::string_view> picking = {"aten::embedding", "aten::index_select", "aten::gather",
                                                     "aten::index"};
  return picking.contains(name);
}

OpRule make_rule(const at::RecordFunction& op) {
  OpRule rule;
  rule.name = op.name();
  rule.product = product_named(rule.name);
  rule.works = touches_values(rule.name);
  rule.rows_only = reads_rows_only(rule.name);
  const auto schema = op.operator_schema();
  if (!schema) return rule;
  const bool forgets = overwrites(rule.name);
  for (const c10::Argument& argument : schema->arguments()) {
    const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    rule.arguments.push_back({!argument.is_out() && !(written && forgets), written});
  }
  return rule;
}

template <class Visit>
void visit_op_tensors(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      if (tensor.defined()) visit(tensor);
    }
  } else if (value.isList() && !value.isIntList() && !value.isDoubleList() && !value.isBoolList()) {
    for (const c10::IValue& item : value.toListRef()) visit_op_tensors(item, visit);
  } else if (value.isTuple()) {
    for (const c10::IValue& item : value.toTupleRef().elements()) visit_op_tensors(item, visit);
  }
}

// An expanded tensor has fewer bytes than elements.
int64_t tensor_bytes(const at::Tensor& tensor) {
  const auto bytes = static_cast<int64_t>(tensor.numel()) * static_cast<int64_t>(tensor.element_size());
  return tensor.has_storage() ? std::min(bytes, static_cast<int64_t>(tensor.storage().nbytes())) : bytes;
}

const void* storage_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? static_cast<const void*>(tensor.storage().unsafeGetStorageImpl()) : nullptr;
}

at::IntArrayRef sizes_at(OpInputs inputs, std::size_t i) {
  if (i >= inputs.size() || !inputs[i].isTensor() || !inputs[i].toTensor().defined()) return {};
  return inputs[i].toTensor().sizes();
}

int64_t product_of(at::IntArrayRef sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

// [..., m, k] and [..., k, n], or [..., m, k] and [k].
int64_t matmul_flops(at::IntArrayRef a, at::IntArrayRef b) {
  if (a.empty() || b.empty()) return 0;
  return 2 * product_of(a) * (b.size() >= 2 ? b.back() : 1);
}

// Places of a picture [batch, channels, ...], with or without its batch.
int64_t places_of(at::IntArrayRef picture, std::size_t spatial) {
  if (picture.size() < spatial + 1) return 0;
  return product_of(picture.slice(picture.size() - spatial)) * (picture.size() > spatial + 1 ? picture[0] : 1);
}

// Each weight meets each place of the smaller of the two pictures: of the output, or of the input when transposed. The
// weight has the input channels of one group.
int64_t convolution_flops(at::IntArrayRef input, at::IntArrayRef weight, at::IntArrayRef output, bool transposed) {
  if (weight.size() < 3) return 0;
  return 2 * places_of(transposed ? input : output, weight.size() - 2) * product_of(weight);
}

// grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask
int64_t convolution_backward_flops(OpInputs inputs) {
  if (inputs.size() < 11 || !inputs[10].isBoolList()) return 0;
  const int64_t one = convolution_flops(sizes_at(inputs, 1), sizes_at(inputs, 2), sizes_at(inputs, 0),
                                        inputs[7].isBool() && inputs[7].toBool());
  const auto mask = inputs[10].toBoolList();
  return ((mask.get(0) ? 1 : 0) + (mask.get(1) ? 1 : 0)) * one;
}

// [batch, heads, length, width] each; masks take nothing away, as in torch.utils.flop_counter. Backward makes the
// scores again: three products as wide as a key and two as wide as a value.
int64_t attention_flops(OpInputs inputs, std::size_t query, int64_t of_key, int64_t of_value) {
  const auto q = sizes_at(inputs, query), k = sizes_at(inputs, query + 1), v = sizes_at(inputs, query + 2);
  if (q.size() != 4 || k.size() != 4 || v.size() != 4) return 0;
  return 2 * q[0] * q[1] * q[2] * k[2] * (of_key * q[3] + of_value * v[3]);
}

const at::Tensor* first_factor(const OpRule& rule, OpInputs inputs) {
  const std::size_t i = rule.product == Product::added_mm ? 1 : 0;
  return i < inputs.size() && inputs[i].isTensor() && inputs[i].toTensor().defined() ? &inputs[i].toTensor() : nullptr;
}

bool transposed_convolution(OpInputs inputs) {  // input, weight, bias, stride, padding, dilation, transposed, ...
  return inputs.size() > 6 && inputs[6].isBool() && inputs[6].toBool();
}

std::string float32_product_precision(const at::Tensor& tensor, Product product) {
  const auto backend = tensor.is_cuda() ? at::Float32Backend::CUDA : at::Float32Backend::MKLDNN;
  const bool convolution = product == Product::convolution || product == Product::convolution_backward;
  const auto op = convolution ? at::Float32Op::CONV : at::Float32Op::MATMUL;
  switch (at::globalContext().float32Precision(backend, op)) {
    case at::Float32Precision::TF32: return "tf32";
    case at::Float32Precision::BF16: return "bfloat16";
    default: return "float32";
  }
}

int64_t flops_from_inputs(const OpRule& rule, OpInputs inputs) {
  switch (rule.product) {
    case Product::mm: return matmul_flops(sizes_at(inputs, 0), sizes_at(inputs, 1));
    case Product::added_mm: return matmul_flops(sizes_at(inputs, 1), sizes_at(inputs, 2));
    case Product::convolution:
      if (!transposed_convolution(inputs)) return 0;
      return convolution_flops(sizes_at(inputs, 0), sizes_at(inputs, 1), {}, true);
    case Product::convolution_backward: return convolution_backward_flops(inputs);
    case Product::attention: return attention_flops(inputs, 0, 1, 1);
    case Product::attention_backward: return attention_flops(inputs, 1, 3, 2);
    default: return 0;
  }
}

std::string product_precision(const OpRule& rule, OpInputs inputs) {
  const at::Tensor* factor = first_factor(rule, inputs);
  if (factor == nullptr) return {};
  switch (factor->scalar_type()) {
    case at::kFloat: return float32_product_precision(*factor, rule.product);
    case at::kDouble: return "float64";
    case at::kBFloat16: return "bfloat16";
    case at::kHalf: return "float16";
    default: return c10::toString(factor->scalar_type());
  }
}

std::string shapes_text(OpInputs inputs) {
  std::string text;
  for (const c10::IValue& input : inputs) {
    std::string one;
    if (input.isTensor() && input.toTensor().defined()) {
      for (const int64_t size : input.toTensor().sizes()) one += (one.empty() ? "" : ", ") + std::to_string(size);
      one = "[" + one + "]";
    } else if (input.isTensorList()) {
      one = std::to_string(input.toListRef().size()) + " tensors";
    }
    if (!one.empty()) text += (text.empty() ? "" : ", ") + one;
  }
  return text;
}

}  // namespace

const OpRule& OpRule::of(const at::RecordFunction& op) {
  thread_local std::unordered_map<c10::OperatorName, OpRule> rules;
  const c10::OperatorName name = *op.operator_name();
  const auto found = rules.find(name);
  return found != rules.end() ? found->second : rules.emplace(name, make_rule(op)).first->second;
}

OpFacts::OpFacts(const OpRule& rule, OpInputs inputs) : flops(flops_from_inputs(rule, inputs)) {
  if (!rule.works) return;
  shapes = shapes_text(inputs);
  if (rule.product != Product::none) precision = product_precision(rule, inputs);
  if (rule.product == Product::convolution && !transposed_convolution(inputs)) {
    flops_of_a_place = 2 * product_of(sizes_at(inputs, 1));
    spatial_ = std::max<std::size_t>(sizes_at(inputs, 1).size(), 2) - 2;
  }
  c10::SmallVector<const void*, 6> seen;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const OpRule::Use use = i < rule.arguments.size() ? rule.arguments[i] : OpRule::Use{true, false};
    visit_op_tensors(inputs[i], [&](const at::Tensor& tensor) {
      on_device = on_device || !tensor.is_cpu();
      storages_.push_back(storage_of(tensor));
      // Not of lists: an optimizer's hold thousands, each once.
      const bool again =
          inputs[i].isTensor() && std::find(seen.begin(), seen.end(), tensor.unsafeGetTensorImpl()) != seen.end();
      if (again) return;
      if (inputs[i].isTensor()) seen.push_back(tensor.unsafeGetTensorImpl());
      const int64_t size = tensor_bytes(tensor);
      if (first_ < 0) first_ = size;
      if (use.read) read_ += size;
      if (use.written) written_ += size;
    });
  }
}

void OpFacts::finish(const OpRule& rule, const std::vector<c10::IValue>& outputs) {
  if (!rule.works) return;
  if (flops_of_a_place > 0 && !outputs.empty() && outputs[0].isTensor() && outputs[0].toTensor().defined()) {
    const auto picture = outputs[0].toTensor().sizes();
    flops = flops_of_a_place * places_of(picture, spatial_);
  }
  std::sort(storages_.begin(), storages_.end());
  int64_t made = 0;
  for (const c10::IValue& output : outputs) {
    visit_op_tensors(output, [&](const at::Tensor& tensor) {
      // One that shares an input's memory is a view of it, or was written to above.
      if (!std::binary_search(storages_.begin(), storages_.end(), storage_of(tensor))) made += tensor_bytes(tensor);
    });
  }
  if (made == 0 && written_ == 0) return;
  if (rule.rows_only) read_ -= std::max<int64_t>(0, first_ - made);
  bytes = read_ + written_ + made;
}

}  // namespace saturate::detail
