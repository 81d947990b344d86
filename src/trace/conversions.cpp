// SPDX-License-Identifier: Apache-2.0
#include "saturate/trace/conversions.hpp"

#include "saturate/trace/op_flops.hpp"

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace saturate {
namespace {

using Numbers = std::vector<int64_t>;

// What a conversion turns into what.
struct Change {
  ConversionKind kind = ConversionKind::layout;
  std::string from, to;
  std::string shape;  // same text, same shape
  int64_t bytes = 0;
};

// Sizes of 1 have any stride. Of the others each stride is the product of the sizes inside of it, in an order.
bool has_order(const Numbers& sizes, const Numbers& strides, const Numbers& inner_to_outer) {
  int64_t expected = 1;
  for (const int64_t dim : inner_to_outer) {
    const auto i = static_cast<std::size_t>(dim);
    if (sizes[i] == 1) continue;
    if (strides[i] != expected) return false;
    expected *= sizes[i];
  }
  return true;
}

// "NCHW" (or NCDHW) and "NHWC"; empty: neither. A tensor that is both (one channel, or one place) is called NCHW.
std::string layout_of(const Numbers& sizes, const Numbers& strides) {
  if (sizes.size() != strides.size()) return {};
  if (sizes.size() == 4) {
    if (has_order(sizes, strides, {3, 2, 1, 0})) return "NCHW";
    if (has_order(sizes, strides, {1, 3, 2, 0})) return "NHWC";
  } else if (sizes.size() == 5) {
    if (has_order(sizes, strides, {4, 3, 2, 1, 0})) return "NCDHW";
    if (has_order(sizes, strides, {1, 4, 3, 2, 0})) return "NDHWC";
  } else {
    Numbers order;
    for (std::size_t i = sizes.size(); i-- > 0;) order.push_back(static_cast<int64_t>(i));
    if (has_order(sizes, strides, order)) return "contiguous";
  }
  return {};
}

bool is_both_layouts(const Numbers& sizes) {
  const int64_t places = sizes.size() == 4   ? sizes[2] * sizes[3]
                         : sizes.size() == 5 ? sizes[2] * sizes[3] * sizes[4]
                                             : 1;
  return sizes.size() < 4 || sizes[1] == 1 || places == 1;
}

std::string text_of(const Numbers& sizes) {
  std::string text;
  for (const int64_t size : sizes) text += std::to_string(size) + ",";
  return text;
}

// "[\"float\",\"double\"]": the i-th.
std::string type_at(std::string_view types, int i) {
  std::size_t at = 0;
  for (;; --i) {
    const std::size_t begin = types.find('"', at), end = begin == types.npos ? begin : types.find('"', begin + 1);
    if (end == types.npos) return {};
    if (i == 0) return std::string(types.substr(begin + 1, end - begin - 1));
    at = end + 1;
  }
}

// Of a copy_ into argument 0 out of argument 1.
std::optional<Change> change_of_copy(const Trace& trace, const TraceDetails& details) {
  const std::string &shapes = trace.text(details.shapes), &types = trace.text(details.types);
  const OpCall call = parse_op_call("aten::copy_", shapes, types, "");
  if (call.arguments.size() < 2 || call.arguments[0].element_bytes == 0 || call.arguments[1].element_bytes == 0)
    return {};
  const OpArgument &to = call.arguments[0], &from = call.arguments[1];
  Change change{.shape = text_of(to.sizes)};
  const auto cost = op_cost(call);
  change.bytes = std::max<int64_t>(cost.bytes, 0);
  change.from = type_at(types, 1);
  change.to = type_at(types, 0);
  if (change.from != change.to) {
    change.kind = ConversionKind::type;
    return change;
  }
  // Strides have the same form as shapes.
  const OpCall strides = parse_op_call("", trace.text(details.strides), types, "");
  if (strides.arguments.size() < 2 || to.sizes != from.sizes || to.sizes.size() < 2) return {};
  const Numbers &to_strides = strides.arguments[0].sizes, &from_strides = strides.arguments[1].sizes;
  if (to_strides == from_strides || to_strides.size() != to.sizes.size() || from_strides.size() != to.sizes.size())
    return {};
  change.to = layout_of(to.sizes, to_strides);
  change.from = layout_of(from.sizes, from_strides);
  if (change.from == change.to && !change.to.empty()) return {};               // the difference is in sizes of 1
  if (std::count(from_strides.begin(), from_strides.end(), 0) > 0) return {};  // is spread out, not rearranged
  const bool between_layouts = !change.from.empty() && !change.to.empty() && !is_both_layouts(to.sizes);
  change.kind = between_layouts ? ConversionKind::layout : ConversionKind::gather;
  if (change.from.empty()) change.from = "strided";
  if (change.to.empty()) change.to = "strided";
  return change;
}

std::string lowered(std::string_view text) {
  std::string result;
  for (const char c : text) result += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

// Of what its name alone tells.
std::optional<Change> change_by_name(std::string_view name, EventKind kind) {
  const std::string lower = lowered(name);
  const auto has = [&](std::string_view part) { return lower.find(part) != std::string::npos; };
  if (kind == EventKind::kernel && has("nchwtonhwc")) return Change{ConversionKind::layout, "NCHW", "NHWC", {}, 0};
  if (kind == EventKind::kernel && has("nhwctonchw")) return Change{ConversionKind::layout, "NHWC", "NCHW", {}, 0};
  if (kind != EventKind::op && kind != EventKind::kernel) return {};
  if (has("to_mkldnn")) return Change{ConversionKind::reorder, "dense", "blocked", {}, 0};
  if (has("mkldnn_to_dense")) return Change{ConversionKind::reorder, "blocked", "dense", {}, 0};
  if ((has("mkldnn") || has("onednn")) && has("reorder")) return Change{ConversionKind::reorder, {}, {}, {}, 0};
  return {};
}

// They are how a conversion is asked for, not who asks.
bool only_converts(std::string_view name) {
  static const std::unordered_set<std::string_view> names{
      "aten::to",      "aten::_to_copy", "aten::copy_", "aten::clone",    "aten::contiguous",
      "aten::reshape", "aten::float",    "aten::half",  "aten::to_dense", "aten::to_mkldnn"};
  return names.contains(name);
}

class ConversionSearch {
 public:
  explicit ConversionSearch(const Timeline& timeline)
      : timeline_(timeline),
        trace_(timeline.trace()),
        converts_(trace_.events.size()),
        in_backward_(trace_.events.size()),
        by_name_(trace_.texts()) {
    add_device_times();
    const TextId copy = trace_.find("aten::copy_");
    for (uint32_t i = 0; i < trace_.events.size(); ++i) {
      const TraceEvent& event = trace_.events[i];
      const uint32_t parent = timeline_.nodes()[i].parent;
      const bool above = parent != Timeline::none;
      in_backward_[i] = (above && in_backward_[parent]) || is_backward(event);
      converts_[i] = above && converts_[parent];
      if (converts_[i]) continue;
      const std::optional<Change> change = change_of(i, copy);
      converts_[i] = change.has_value();
      if (change) add(i, *change);
    }
  }

  Conversions result() {
    for (auto& [key, row] : rows_) found_.rows.push_back(std::move(row));
    std::stable_sort(found_.rows.begin(), found_.rows.end(),
                     [](const Conversion& a, const Conversion& b) { return a.ns > b.ns; });
    for (const TraceStep& step : timeline_.steps()) found_.steps_ns += step.end_ns - step.begin_ns;
    return std::move(found_);
  }

 private:
  bool is_backward(const TraceEvent& event) const {
    if (event.kind != EventKind::op && event.kind != EventKind::annotation) return false;
    const std::string_view name = trace_.text(event.name);
    return name.starts_with("autograd::engine::evaluate_function") || name == "backward";
  }

  std::optional<Change> change_of(uint32_t i, TextId copy) {
    const TraceEvent& event = trace_.events[i];
    if (event.kind == EventKind::op && event.name == copy && copy != 0) {
      const TraceDetails* const details = trace_.details_of(event);
      if (details == nullptr || details->shapes == 0 || details->types == 0) return {};
      found_.shapes_known = true;
      const auto [place, is_new] = copies_.try_emplace({details->shapes, details->types, details->strides});
      if (is_new) place->second = change_of_copy(trace_, *details);
      return place->second;
    }
    if (event.kind != EventKind::op && event.kind != EventKind::kernel) return {};
    auto& named = by_name_[event.name];
    if (!named) named = change_by_name(trace_.text(event.name), event.kind);
    if (*named && event.kind == EventKind::kernel) {  // of a copy that is counted already
      const uint32_t caller = timeline_.operator_of(i);
      if (caller != Timeline::none && converts_[caller]) return {};
    }
    return *named;
  }

  void add_device_times() {
    for (uint32_t i = 0; i < trace_.events.size(); ++i) {
      const EventKind kind = trace_.events[i].kind;
      if (kind != EventKind::kernel && kind != EventKind::memcpy) continue;
      const uint32_t caller = timeline_.operator_of(i);
      if (caller != Timeline::none) device_ns_[caller] += trace_.events[i].duration_ns;
    }
  }

  // -1: in none.
  int64_t step_of(int64_t time) const {
    const std::vector<TraceStep>& steps = timeline_.steps();
    const auto after =
        std::partition_point(steps.begin(), steps.end(), [&](const TraceStep& step) { return step.begin_ns <= time; });
    return after == steps.begin() || std::prev(after)->end_ns <= time ? -1 : after - steps.begin() - 1;
  }

  std::string caller_of(uint32_t i) const {
    uint32_t at = trace_.lanes[trace_.events[i].lane].device ? timeline_.operator_of(i) : timeline_.nodes()[i].parent;
    for (; at != Timeline::none; at = timeline_.nodes()[at].parent) {
      const std::string& name = trace_.text(trace_.events[at].name);
      const EventKind kind = trace_.events[at].kind;
      if (kind == EventKind::op && !only_converts(name)) return name;
      if (kind == EventKind::annotation && !name.starts_with("ProfilerStep#")) return name;
    }
    return {};
  }

  int64_t time_of(uint32_t i) const {
    const auto on_device = device_ns_.find(i);
    if (on_device != device_ns_.end()) return on_device->second;
    return timeline_.nodes()[i].end_ns - timeline_.nodes()[i].begin_ns;
  }

  void add(uint32_t i, const Change& change) {
    const int64_t step = step_of(timeline_.nodes()[i].begin_ns);
    if (step < 0) return;
    const int64_t ns = time_of(i);
    const std::string caller = caller_of(i);
    Conversion& row = rows_[{change.kind, change.from, change.to, caller}];
    row.kind = change.kind;
    row.from = change.from;
    row.to = change.to;
    row.caller = caller;
    ConversionSum& sum = found_.sums[static_cast<std::size_t>(change.kind)];
    ++row.count, row.bytes += change.bytes, row.ns += ns;
    ++sum.count, sum.bytes += change.bytes, sum.ns += ns;
    if (takes_back(i, step, change)) ++sum.back;
  }

  // Whether what it does undoes an earlier conversion that has not been undone yet.
  bool takes_back(uint32_t i, int64_t step, const Change& change) {
    if (change.kind == ConversionKind::gather || change.from.empty() || change.to.empty()) return false;
    if (step != open_step_) open_.clear();
    open_step_ = step;
    const uint32_t asked = trace_.lanes[trace_.events[i].lane].device ? timeline_.launch_of(i) : i;
    const bool backward = asked != Timeline::none && in_backward_[asked];
    int64_t& others = open_[{change.kind, backward, change.to + ">" + change.from, change.shape}];
    if (others > 0) {
      --others;
      return true;
    }
    ++open_[{change.kind, backward, change.from + ">" + change.to, change.shape}];
    return false;
  }

  const Timeline& timeline_;
  const Trace& trace_;
  std::vector<bool> converts_, in_backward_;                   // it, or something around it
  std::vector<std::optional<std::optional<Change>>> by_name_;  // by TextId; asked once
  std::map<std::tuple<TextId, TextId, TextId>, std::optional<Change>> copies_;
  std::unordered_map<uint32_t, int64_t> device_ns_;  // of operators that launched something
  std::map<std::tuple<ConversionKind, std::string, std::string, std::string>, Conversion> rows_;
  std::map<std::tuple<ConversionKind, bool, std::string, std::string>, int64_t> open_;
  int64_t open_step_ = -1;
  Conversions found_;
};

}  // namespace

std::string_view to_string(ConversionKind kind) {
  switch (kind) {
    case ConversionKind::layout: return "layout";
    case ConversionKind::gather: return "made contiguous";
    case ConversionKind::reorder: return "oneDNN reorder";
    case ConversionKind::type: return "type";
  }
  return "unknown";
}

Conversions conversions(const Timeline& timeline) { return ConversionSearch(timeline).result(); }

}  // namespace saturate
