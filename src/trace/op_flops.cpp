// SPDX-License-Identifier: Apache-2.0
#include "saturate/trace/op_flops.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <functional>
#include <numeric>
#include <optional>
#include <unordered_map>
#include <unordered_set>

namespace saturate {
namespace {

using Sizes = std::vector<int64_t>;
constexpr int64_t unknown_cost = OpCost::unknown;

int64_t elements_of(const Sizes& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

const OpArgument& argument_at(const OpCall& call, std::size_t i) {
  static const OpArgument missing;
  return i < call.arguments.size() ? call.arguments[i] : missing;
}

bool is_tensor(const OpArgument& argument) { return argument.element_bytes > 0; }
int64_t bytes_of(const OpArgument& argument) { return elements_of(argument.sizes) * argument.element_bytes; }

int64_t bytes_read(const OpCall& call) {
  int64_t bytes = 0;
  for (const OpArgument& argument : call.arguments) {
    if (argument.tensor_list) return unknown_cost;
    if (is_tensor(argument)) bytes += bytes_of(argument);
  }
  return bytes;
}

// What both have in common, or a size that the other repeats; nothing: they do not fit.
std::optional<Sizes> broadcast_of(const Sizes& a, const Sizes& b) {
  const Sizes& longer = a.size() >= b.size() ? a : b;
  const Sizes& shorter = a.size() >= b.size() ? b : a;
  Sizes result = longer;
  const std::size_t ahead = longer.size() - shorter.size();
  for (std::size_t i = 0; i < shorter.size(); ++i) {
    int64_t& size = result[ahead + i];
    if (size == 1) {
      size = shorter[i];
    } else if (shorter[i] != 1 && shorter[i] != size) {
      return {};
    }
  }
  return result;
}

// ---- Matrix products: torch.utils.flop_counter's mm_flop and bmm_flop, m n 2 k for each of a batch.

OpCost cost_of_product(const OpCall& call, const OpArgument& a, const OpArgument& b, int64_t products, int64_t inner) {
  if (products < 0) return {unknown_cost, unknown_cost};
  OpCost cost{.flops = 2 * products * inner};
  const int64_t read = bytes_read(call);
  if (is_tensor(a) && is_tensor(b) && read >= 0) cost.bytes = read + products * a.element_bytes;
  return cost;
}

// [..., m, k] and [..., k, n]; either may be one vector.
OpCost cost_of_matmul(const OpCall& call, std::size_t first) {
  const OpArgument &a = argument_at(call, first), &b = argument_at(call, first + 1);
  if (a.sizes.empty() || b.sizes.empty()) return {unknown_cost, unknown_cost};
  const bool a_is_vector = a.sizes.size() == 1, b_is_vector = b.sizes.size() == 1;
  const int64_t rows = a_is_vector ? 1 : a.sizes[a.sizes.size() - 2], columns = b_is_vector ? 1 : b.sizes.back();
  const Sizes a_batch(a.sizes.begin(), a_is_vector ? a.sizes.begin() : a.sizes.end() - 2);
  const Sizes b_batch(b.sizes.begin(), b_is_vector ? b.sizes.begin() : b.sizes.end() - 2);
  const auto batch = broadcast_of(a_batch, b_batch);
  const int64_t inner = a.sizes.back(), of_b = b_is_vector ? b.sizes[0] : b.sizes[b.sizes.size() - 2];
  if (!batch || inner != of_b) return {unknown_cost, unknown_cost};
  return cost_of_product(call, a, b, elements_of(*batch) * rows * columns, inner);
}

// [..., k] and [n, k].
OpCost cost_of_linear(const OpCall& call) {
  const OpArgument &a = argument_at(call, 0), &b = argument_at(call, 1);
  if (a.sizes.empty() || b.sizes.size() != 2 || a.sizes.back() != b.sizes[1]) return {unknown_cost, unknown_cost};
  const int64_t inner = a.sizes.back();
  return cost_of_product(call, a, b, inner == 0 ? 0 : elements_of(a.sizes) / inner * b.sizes[0], inner);
}

// ---- Convolutions: conv_flop_count and conv_backward_flop. Each weight meets each place of the output, of the input
// when the convolution is transposed. A weight has the channels of one group only.

constexpr int never = -1, always = -2;

// Where the arguments are. Input and weight are the first two.
struct ConvolutionPlaces {
  int stride, padding, dilation, transposed, output_padding;
};

// A number for each dimension; one for all may be given.
std::optional<Sizes> spatial_values(const OpCall& call, int place, std::size_t dimensions, int64_t otherwise) {
  if (place < 0) return Sizes(dimensions, otherwise);
  const Sizes& values = argument_at(call, static_cast<std::size_t>(place)).values;
  if (values.size() == 1) return Sizes(dimensions, values[0]);
  return values.size() == dimensions ? std::optional(values) : std::nullopt;
}

bool has_batch(const Sizes& picture, std::size_t dimensions) { return picture.size() == dimensions + 2; }

// Places of [batch, channels, ...] or [channels, ...]: of all pictures of a batch.
int64_t picture_places(const Sizes& picture, std::size_t dimensions) {
  const Sizes spatial(picture.end() - static_cast<std::ptrdiff_t>(dimensions), picture.end());
  return elements_of(spatial) * (has_batch(picture, dimensions) ? picture[0] : 1);
}

bool is_picture(const Sizes& sizes, std::size_t dimensions) {
  return dimensions > 0 && (sizes.size() == dimensions + 1 || sizes.size() == dimensions + 2);
}

// Output length of a dimension, torch.nn.Conv2d and ConvTranspose2d.
int64_t output_length(int64_t in, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation) {
  return (in + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1;
}
int64_t transposed_length(int64_t in, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation, int64_t more) {
  return (in - 1) * stride - 2 * padding + dilation * (kernel - 1) + more + 1;
}

// Places of the output; unknown_cost: the trace has no values, or they do not fit.
int64_t output_places(const OpCall& call, const ConvolutionPlaces& at, bool transposed) {
  const Sizes &input = argument_at(call, 0).sizes, &weight = argument_at(call, 1).sizes;
  const std::size_t n = weight.size() - 2;
  const std::string_view named =
      at.padding < 0 ? std::string_view() : argument_at(call, static_cast<std::size_t>(at.padding)).text;
  const auto stride = spatial_values(call, at.stride, n, 1), dilation = spatial_values(call, at.dilation, n, 1);
  const auto padding = named.empty() ? spatial_values(call, at.padding, n, 0) : Sizes(n, 0);
  const auto more = spatial_values(call, transposed ? at.output_padding : never, n, 0);
  if (!stride || !padding || !dilation || !more) return unknown_cost;
  int64_t places = has_batch(input, n) ? input[0] : 1;
  for (std::size_t i = 0; i < n; ++i) {
    const int64_t in = input[input.size() - n + i], kernel = weight[2 + i];
    if ((*stride)[i] <= 0) return unknown_cost;
    int64_t out = transposed ? transposed_length(in, kernel, (*stride)[i], (*padding)[i], (*dilation)[i], (*more)[i])
                             : output_length(in, kernel, (*stride)[i], (*padding)[i], (*dilation)[i]);
    if (named == "same") out = in;
    if (out < 0) return unknown_cost;
    places *= out;
  }
  return places;
}

OpCost cost_of_convolution(const OpCall& call, const ConvolutionPlaces& at) {
  const OpArgument &input = argument_at(call, 0), &weight = argument_at(call, 1);
  if (weight.sizes.size() < 3 || !is_picture(input.sizes, weight.sizes.size() - 2)) return {unknown_cost, unknown_cost};
  bool transposed = at.transposed == always;
  int64_t groups = 1;
  if (at.transposed >= 0) {
    const Sizes& flag = argument_at(call, static_cast<std::size_t>(at.transposed)).values;
    if (flag.size() != 1) return {unknown_cost, unknown_cost};
    transposed = flag[0] != 0;
  }
  const std::size_t n = weight.sizes.size() - 2;
  const int64_t out = output_places(call, at, transposed);
  const int64_t met = transposed ? picture_places(input.sizes, n) : out;
  if (met < 0) return {unknown_cost, unknown_cost};
  OpCost cost{.flops = 2 * met * elements_of(weight.sizes)};
  // The weight is [out, in / groups, ...], of a transposed convolution [in, out / groups, ...].
  if (transposed && weight.sizes[1] > 0) {
    const OpArgument& told = argument_at(call, at.transposed == always ? 6 : 8);
    groups = told.values.size() == 1 ? told.values[0] : 1;
  }
  const int64_t channels = transposed ? weight.sizes[1] * groups : weight.sizes[0];
  const int64_t read = bytes_read(call);
  if (out >= 0 && read >= 0 && is_tensor(input)) cost.bytes = read + out * channels * input.element_bytes;
  return cost;
}

// grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask.
OpCost cost_of_convolution_backward(const OpCall& call) {
  const OpArgument &gradient = argument_at(call, 0), &input = argument_at(call, 1), &weight = argument_at(call, 2);
  const Sizes &flag = argument_at(call, 7).values, &mask = argument_at(call, 10).values;
  if (weight.sizes.size() < 3 || flag.size() != 1 || mask.size() != 3) return {unknown_cost, unknown_cost};
  const std::size_t n = weight.sizes.size() - 2;
  const Sizes& met = flag[0] != 0 ? input.sizes : gradient.sizes;
  if (!is_picture(met, n)) return {unknown_cost, unknown_cost};
  const int64_t one = 2 * picture_places(met, n) * elements_of(weight.sizes);
  OpCost cost{.flops = (mask[0] != 0 ? one : 0) + (mask[1] != 0 ? one : 0)};
  const int64_t read = bytes_read(call);
  if (read < 0 || !is_tensor(weight)) return cost;
  const Sizes& bias = argument_at(call, 3).values;
  cost.bytes = read + (mask[0] != 0 ? bytes_of(input) : 0) + (mask[1] != 0 ? bytes_of(weight) : 0) +
               (mask[2] != 0 && !bias.empty() ? bias[0] * weight.element_bytes : 0);
  return cost;
}

// ---- Attention: sdpa_flop_count, sdpa_backward_flop_count over [batch, heads, length, width]. Backward makes the
// scores again: three products as wide as a key, two as wide as a value.

OpCost cost_of_attention(const OpCall& call, bool backward) {
  const std::size_t first = backward ? 1 : 0;
  const OpArgument &q = argument_at(call, first), &k = argument_at(call, first + 1), &v = argument_at(call, first + 2);
  if (q.sizes.size() < 3 || k.sizes.size() != q.sizes.size() || v.sizes.size() != q.sizes.size()) {
    return {unknown_cost, unknown_cost};
  }
  const std::size_t n = q.sizes.size();
  const int64_t width = q.sizes[n - 1], width_of_value = v.sizes[n - 1];
  const int64_t rows = width == 0 ? 0 : elements_of(q.sizes) / width;
  const int64_t scores = rows * k.sizes[n - 2];
  OpCost cost{.flops = 2 * scores * (backward ? 3 * width + 2 * width_of_value : width + width_of_value)};
  const int64_t read = bytes_read(call);
  if (read < 0 || !is_tensor(q)) return cost;
  cost.bytes = read + (backward ? bytes_of(q) + bytes_of(k) + bytes_of(v) : rows * width_of_value * q.element_bytes);
  return cost;
}

std::optional<OpCost> cost_of_products(const OpCall& call) {
  static const std::unordered_map<std::string_view, std::function<OpCost(const OpCall&)>> rules = [] {
    std::unordered_map<std::string_view, std::function<OpCost(const OpCall&)>> table;
    for (const auto name : {"aten::mm", "aten::bmm", "aten::mv", "aten::dot", "aten::matmul", "aten::_int_mm",
                            "aten::_scaled_mm", "aten::vdot"}) {
      table[name] = [](const OpCall& c) { return cost_of_matmul(c, 0); };
    }
    for (const auto name : {"aten::addmm", "aten::addmm_", "aten::_addmm_activation", "aten::baddbmm", "aten::baddbmm_",
                            "aten::addmv", "aten::addmv_"}) {
      table[name] = [](const OpCall& c) { return cost_of_matmul(c, 1); };
    }
    for (const auto name : {"aten::linear", "aten::mkldnn_linear", "mkldnn::_linear_pointwise"}) {
      table[name] = cost_of_linear;
    }
    const auto convolution = [&](std::initializer_list<const char*> names, ConvolutionPlaces at) {
      for (const auto name : names) table[name] = [at](const OpCall& c) { return cost_of_convolution(c, at); };
    };
    convolution({"aten::conv1d", "aten::conv2d", "aten::conv3d"}, {3, 4, 5, never, never});
    convolution({"aten::convolution", "aten::_convolution", "aten::convolution_overrideable"}, {3, 4, 5, 6, 7});
    convolution({"aten::conv_transpose1d", "aten::conv_transpose2d", "aten::conv_transpose3d"}, {3, 4, 7, always, 5});
    convolution({"aten::cudnn_convolution"}, {3, 2, 4, never, never});
    convolution({"aten::mkldnn_convolution"}, {4, 3, 5, never, never});
    convolution({"aten::_slow_conv2d_forward", "aten::thnn_conv2d", "aten::slow_conv3d_forward", "aten::slow_conv3d"},
                {4, 5, never, never, never});
    convolution({"aten::_conv_depthwise2d", "aten::conv_depthwise3d"}, {4, 5, 6, never, never});
    table["aten::convolution_backward"] = cost_of_convolution_backward;
    for (const auto name :
         {"aten::scaled_dot_product_attention", "aten::_scaled_dot_product_flash_attention",
          "aten::_scaled_dot_product_flash_attention_for_cpu", "aten::_scaled_dot_product_efficient_attention",
          "aten::_scaled_dot_product_cudnn_attention", "aten::_scaled_dot_product_attention_math"}) {
      table[name] = [](const OpCall& c) { return cost_of_attention(c, false); };
    }
    for (const auto name : {"aten::_scaled_dot_product_flash_attention_backward",
                            "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
                            "aten::_scaled_dot_product_efficient_attention_backward",
                            "aten::_scaled_dot_product_cudnn_attention_backward"}) {
      table[name] = [](const OpCall& c) { return cost_of_attention(c, true); };
    }
    return table;
  }();
  const auto found = rules.find(call.name);
  return found == rules.end() ? std::nullopt : std::optional(found->second(call));
}

// ---- What only moves bytes.

using Names = std::unordered_set<std::string_view>;

const Names& moving_nothing() {
  static const Names names{"view",
                           "_unsafe_view",
                           "_reshape_alias",
                           "t",
                           "transpose",
                           "permute",
                           "expand",
                           "as_strided",
                           "slice",
                           "select",
                           "squeeze",
                           "unsqueeze",
                           "detach",
                           "detach_",
                           "alias",
                           "narrow",
                           "unbind",
                           "split",
                           "chunk",
                           "empty",
                           "diagonal",
                           "empty_like",
                           "empty_strided",
                           "new_empty",
                           "resize_",
                           "empty_permuted",
                           "new_empty_strided",
                           "unfold",
                           "set_",
                           "lift_fresh",
                           "resolve_conj",
                           "resolve_neg",
                           "movedim",
                           "swapaxes",
                           "is_same_size",
                           "record_stream"};
  return names;
}

// One result, as large as the arguments broadcast together.
const Names& element_by_element() {
  static const Names names{"add",
                           "sub",
                           "rsub",
                           "mul",
                           "div",
                           "pow",
                           "neg",
                           "abs",
                           "exp",
                           "log",
                           "log1p",
                           "expm1",
                           "sqrt",
                           "rsqrt",
                           "sin",
                           "cos",
                           "tanh",
                           "sigmoid",
                           "relu",
                           "gelu",
                           "silu",
                           "mish",
                           "elu",
                           "leaky_relu",
                           "hardtanh",
                           "hardswish",
                           "softplus",
                           "clamp",
                           "clamp_min",
                           "clamp_max",
                           "where",
                           "maximum",
                           "minimum",
                           "lerp",
                           "addcmul",
                           "addcdiv",
                           "reciprocal",
                           "sign",
                           "floor",
                           "ceil",
                           "round",
                           "erf",
                           "square",
                           "masked_fill",
                           "bitwise_and",
                           "bitwise_or",
                           "bitwise_not",
                           "logical_and",
                           "logical_or",
                           "logical_not",
                           "threshold",
                           "fmod",
                           "remainder",
                           "atan2",
                           "tril",
                           "triu",
                           "flip",
                           "roll",
                           "cumsum",
                           "clone",

                           "_softmax",
                           "_log_softmax",
                           "native_dropout",
                           "native_layer_norm",
                           "native_batch_norm",
                           "cudnn_batch_norm",
                           "_native_batch_norm_legit",
                           "_batch_norm_with_update",
                           "native_group_norm",
                           "_fused_rms_norm",
                           "mse_loss_backward",
                           "threshold_backward",
                           "gelu_backward",
                           "silu_backward",
                           "sigmoid_backward",
                           "tanh_backward",
                           "hardtanh_backward",
                           "leaky_relu_backward",
                           "_softmax_backward_data",
                           "_log_softmax_backward_data",
                           "native_dropout_backward",
                           "native_layer_norm_backward",
                           "native_batch_norm_backward",
                           "cudnn_batch_norm_backward",
                           "native_group_norm_backward",
                           "lt",
                           "gt",
                           "le",
                           "ge",
                           "eq",
                           "ne",
                           "isnan",
                           "isinf",
                           "isfinite"};
  return names;
}

const Names& of_one_byte() {
  static const Names names{"lt",    "gt",    "le",       "ge",          "eq",         "ne",
                           "isnan", "isinf", "isfinite", "logical_and", "logical_or", "logical_not"};
  return names;
}

// Argument 1 may name the dimensions that go; without it, all.
const Names& reducing() {
  static const Names names{"sum",       "mean",   "amax",         "amin", "max",
                           "min",       "prod",   "var",          "std",  "argmax",
                           "argmin",    "all",    "any",          "norm", "linalg_vector_norm",
                           "logsumexp", "nansum", "count_nonzero"};
  return names;
}

// They write over what they are called on without reading it.
const Names& overwriting() {
  static const Names names{"copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_"};
  return names;
}

// Of the tensors together; where they do not broadcast (a normalization and its statistics): of the largest.
std::pair<int64_t, int64_t> result_elements(const OpCall& call) {
  std::optional<Sizes> all = Sizes{};
  int64_t largest = 0, element = 0;
  for (const OpArgument& argument : call.arguments) {
    if (!is_tensor(argument)) continue;
    if (all) all = broadcast_of(*all, argument.sizes);
    largest = std::max(largest, elements_of(argument.sizes));
    // A scalar tensor does not widen the result.
    if (element == 0 || !argument.sizes.empty()) element = std::max(element, argument.element_bytes);
  }
  return {all ? std::max(elements_of(*all), largest) : largest, element};
}

int64_t reduced_elements(const OpCall& call, const std::string_view name) {
  const OpArgument& input = argument_at(call, 0);
  const OpArgument& dims = argument_at(call, name == "linalg_vector_norm" || name == "norm" ? 2 : 1);
  if (is_tensor(dims)) return unknown_cost;  // max(a, b) of two tensors
  if (dims.values.empty()) return 1;
  const int64_t n = static_cast<int64_t>(input.sizes.size());
  int64_t left = elements_of(input.sizes);
  for (int64_t dim : dims.values) {
    if (dim < 0) dim += n;
    if (dim < 0 || dim >= n) return unknown_cost;
    const int64_t size = input.sizes[static_cast<std::size_t>(dim)];
    if (size == 0) return 0;
    left /= size;
  }
  return left;
}

// weight, indices: reads the rows it copies.
int64_t bytes_of_rows(const OpCall& call) {
  const OpArgument &table = argument_at(call, 0), &rows = argument_at(call, 1);
  if (!is_tensor(table) || !is_tensor(rows) || table.sizes.empty()) return unknown_cost;
  return bytes_of(rows) + 2 * elements_of(rows.sizes) * table.sizes.back() * table.element_bytes;
}

int64_t bytes_moved(const OpCall& call) {
  std::string_view name = call.name;
  if (!name.starts_with("aten::")) return unknown_cost;
  name.remove_prefix(6);
  if (moving_nothing().contains(name)) return 0;
  const int64_t read = bytes_read(call);
  const OpArgument& self = argument_at(call, 0);
  if (read < 0 || !is_tensor(self)) return unknown_cost;
  if (name == "embedding") return bytes_of_rows(call);
  if (overwriting().contains(name)) return read;  // in place of reading it
  if (reducing().contains(name)) {
    const int64_t left = reduced_elements(call, name);
    return left < 0 ? unknown_cost : read + left * self.element_bytes;
  }
  if (name.ends_with('_') && element_by_element().contains(name.substr(0, name.size() - 1))) {
    return read + bytes_of(self);
  }
  if (!element_by_element().contains(name)) return unknown_cost;
  const auto [elements, size] = result_elements(call);
  return read + elements * (of_one_byte().contains(name) ? 1 : size);
}

// ---- Texts of a trace.

// The parts of a JSON array, as they are written: "[[64,128],[]]" gives "[64,128]" and "[]".
std::vector<std::string_view> parts_of_array(std::string_view json) {
  std::vector<std::string_view> parts;
  int depth = 0;
  bool quoted = false;
  std::size_t begin = 0;
  const auto add = [&](std::size_t end) {
    while (begin < end && json[begin] == ' ') ++begin;
    while (end > begin && json[end - 1] == ' ') --end;
    if (begin < end) parts.push_back(json.substr(begin, end - begin));
  };
  for (std::size_t i = 0; i < json.size(); ++i) {
    if (quoted && json[i] == '\\') {
      ++i;
      continue;
    }
    if (json[i] == '"') quoted = !quoted;
    if (quoted) continue;
    if (json[i] == '[' && ++depth == 1) begin = i + 1;
    if (json[i] == ',' && depth == 1) {
      add(i);
      begin = i + 1;
    }
    if (json[i] == ']' && --depth == 0) add(i);
  }
  return parts;
}

std::string_view without_quotes(std::string_view text) {
  if (text.size() < 2 || text.front() != '"' || text.back() != '"') return text;
  return text.substr(1, text.size() - 2);
}

std::optional<int64_t> number_of(std::string_view text) {
  if (text == "True" || text == "true") return 1;
  if (text == "False" || text == "false") return 0;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return number;
}

std::optional<Sizes> numbers_of(std::string_view text) {
  Sizes numbers;
  for (const std::string_view part : parts_of_array(text)) {
    const auto number = number_of(part);
    if (!number) return {};
    numbers.push_back(*number);
  }
  return numbers;
}

void set_value(OpArgument& argument, std::string_view text) {
  if (text.empty()) return;
  if (text.front() == '[') {
    if (auto numbers = numbers_of(text)) argument.values = std::move(*numbers);
  } else if (const auto number = number_of(text)) {
    argument.values = {*number};
  } else {
    argument.text = text;
  }
}

}  // namespace

int64_t type_bytes(std::string_view type) {
  static const std::unordered_map<std::string_view, int64_t> bytes{{"Float", 4},
                                                                   {"float", 4},
                                                                   {"Double", 8},
                                                                   {"double", 8},
                                                                   {"Half", 2},
                                                                   {"c10::Half", 2},
                                                                   {"BFloat16", 2},
                                                                   {"c10::BFloat16", 2},
                                                                   {"Long", 8},
                                                                   {"long int", 8},
                                                                   {"long", 8},
                                                                   {"Int", 4},
                                                                   {"int", 4},
                                                                   {"Short", 2},
                                                                   {"short int", 2},
                                                                   {"short", 2},
                                                                   {"Byte", 1},
                                                                   {"unsigned char", 1},
                                                                   {"Char", 1},
                                                                   {"signed char", 1},
                                                                   {"Bool", 1},
                                                                   {"bool", 1},
                                                                   {"Float8_e4m3fn", 1},
                                                                   {"Float8_e5m2", 1},
                                                                   {"ComplexFloat", 8},
                                                                   {"ComplexDouble", 16},
                                                                   {"c10::Float8_e4m3fn", 1},
                                                                   {"c10::Float8_e5m2", 1},
                                                                   {"c10::complex<float>", 8},
                                                                   {"c10::complex<double>", 16}};
  const auto found = bytes.find(type);
  return found == bytes.end() ? 0 : found->second;
}

OpCost op_cost(const OpCall& call) {
  if (const auto cost = cost_of_products(call)) return *cost;
  return {.flops = 0, .bytes = bytes_moved(call)};
}

OpCall parse_op_call(std::string_view name, std::string_view shapes, std::string_view types, std::string_view values) {
  OpCall call{.name = std::string(name), .arguments = {}};
  const auto sizes = parts_of_array(shapes), kinds = parts_of_array(types), given = parts_of_array(values);
  call.arguments.resize(std::max({sizes.size(), kinds.size(), given.size()}));
  for (std::size_t i = 0; i < call.arguments.size(); ++i) {
    OpArgument& argument = call.arguments[i];
    const std::string_view kind = i < kinds.size() ? without_quotes(kinds[i]) : std::string_view();
    argument.element_bytes = type_bytes(kind);
    argument.tensor_list = kind == "TensorList" || (i < sizes.size() && sizes[i].starts_with("[["));
    if (i < sizes.size() && !argument.tensor_list) argument.sizes = numbers_of(sizes[i]).value_or(Sizes{});
    if (i < given.size() && argument.element_bytes == 0) set_value(argument, without_quotes(given[i]));
  }
  return call;
}

}  // namespace saturate
