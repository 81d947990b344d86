// SPDX-License-Identifier: Apache-2.0
#include "saturate/trace/op_table.hpp"

#include "saturate/trace/op_flops.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <tuple>
#include <unordered_map>

namespace saturate {
namespace {

struct TextsHash {
  std::size_t operator()(const std::array<TextId, 4>& texts) const {
    std::size_t hash = 0;
    for (const TextId text : texts) hash = (hash ^ text) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 29);
  }
};

// What calls cost, worked out once for those with the same texts.
class OpCosts {
 public:
  explicit OpCosts(const Trace& trace) : trace_(trace) {}

  const OpCost& of(const TraceEvent& event) {
    static const TraceDetails nothing;
    const TraceDetails* const told = trace_.details_of(event);
    const TraceDetails& details = told == nullptr ? nothing : *told;
    const std::array<TextId, 4> key{event.name, details.shapes, details.types, details.values};
    const auto [place, is_new] = costs_.try_emplace(key);
    if (is_new) {
      place->second = op_cost(parse_op_call(trace_.text(event.name), trace_.text(details.shapes),
                                            trace_.text(details.types), trace_.text(details.values)));
    }
    return place->second;
  }

 private:
  const Trace& trace_;
  std::unordered_map<std::array<TextId, 4>, OpCost, TextsHash> costs_;
};

class OpTableMaker {
 public:
  explicit OpTableMaker(const Timeline& timeline)
      : timeline_(timeline), trace_(timeline.trace()), costs_(trace_.events.size()), device_ns_(trace_.events.size()) {
    find_costs();
    find_device_times();
  }

  std::vector<OpTableRow> rows(const OpTableOptions& options) const {
    std::unordered_map<std::array<TextId, 4>, std::size_t, TextsHash> places;
    std::vector<OpTableRow> rows;
    for (uint32_t i = 0; i < trace_.events.size(); ++i) {
      const TraceEvent& event = trace_.events[i];
      if (event.kind != EventKind::op || event.start_ns < options.begin_ns || event.start_ns >= options.end_ns)
        continue;
      const TraceDetails* const details = options.by_shape ? trace_.details_of(event) : nullptr;
      const TextId shapes = details == nullptr ? 0 : details->shapes, types = details == nullptr ? 0 : details->types;
      const auto [place, is_new] = places.try_emplace({event.name, shapes, types, 0}, rows.size());
      if (is_new) rows.push_back({.name = event.name, .shapes = shapes, .types = types});
      add(i, rows[place->second]);
    }
    std::stable_sort(rows.begin(), rows.end(), [](const OpTableRow& a, const OpTableRow& b) {
      return std::tie(a.self_device_ns, a.self_ns) > std::tie(b.self_device_ns, b.self_ns);
    });
    return rows;
  }

 private:
  struct DeviceTimes {
    int64_t own = 0, all = 0;
  };
  struct Counted {
    int64_t flops = 0, bytes = 0;
    bool unknown = false;
  };

  // First inside out, to see which product is the innermost, then outside in for the bytes of all others.
  void find_costs() {
    const std::vector<TraceEvent>& events = trace_.events;
    OpCosts costs(trace_);
    std::vector<bool> product_inside(events.size());  // or is one
    std::vector<int64_t> bytes(events.size(), OpCost::unknown);
    for (uint32_t i = static_cast<uint32_t>(events.size()); i-- > 0;) {
      if (events[i].kind == EventKind::op) {
        const OpCost& cost = costs.of(events[i]);
        if (!product_inside[i]) {
          costs_[i].unknown = cost.flops < 0;
          costs_[i].flops = std::max<int64_t>(cost.flops, 0);
          bytes[i] = cost.bytes;
          product_inside[i] = cost.flops != 0;
        }
      }
      const uint32_t parent = timeline_.nodes()[i].parent;
      if (parent != Timeline::none && product_inside[i]) product_inside[parent] = true;
    }
    std::vector<bool> covered(events.size());
    for (uint32_t i = 0; i < events.size(); ++i) {
      const uint32_t parent = timeline_.nodes()[i].parent;
      const bool inside = parent != Timeline::none && covered[parent];
      const bool counts = !inside && bytes[i] > 0;
      if (counts) costs_[i].bytes = bytes[i];
      covered[i] = inside || counts;
    }
  }

  void find_device_times() {
    for (uint32_t i = 0; i < trace_.events.size(); ++i) {
      const EventKind kind = trace_.events[i].kind;
      if (kind != EventKind::kernel && kind != EventKind::memcpy && kind != EventKind::memset) continue;
      const uint32_t caller = timeline_.operator_of(i);
      if (caller != Timeline::none) device_ns_[caller].own += trace_.events[i].duration_ns;
    }
    for (uint32_t i = static_cast<uint32_t>(trace_.events.size()); i-- > 0;) {
      device_ns_[i].all += device_ns_[i].own;
      const uint32_t parent = timeline_.nodes()[i].parent;
      if (parent != Timeline::none) device_ns_[parent].all += device_ns_[i].all;
    }
  }

  bool inside_of_its_own(uint32_t event) const {
    for (uint32_t at = timeline_.nodes()[event].parent; at != Timeline::none; at = timeline_.nodes()[at].parent) {
      if (trace_.events[at].name == trace_.events[event].name && trace_.events[at].kind == EventKind::op) return true;
    }
    return false;
  }

  void add(uint32_t i, OpTableRow& row) const {
    const Timeline::Node& node = timeline_.nodes()[i];
    ++row.calls;
    row.self_ns += node.self_ns;
    row.self_device_ns += device_ns_[i].own;
    row.flops += costs_[i].flops;
    row.bytes += costs_[i].bytes;
    row.unknown += costs_[i].unknown;
    if (inside_of_its_own(i)) return;
    row.total_ns += node.end_ns - node.begin_ns;
    row.device_ns += device_ns_[i].all;
  }

  const Timeline& timeline_;
  const Trace& trace_;
  std::vector<Counted> costs_;
  std::vector<DeviceTimes> device_ns_;
};

double amount_per_second(int64_t amount, int64_t ns) {
  return ns > 0 ? static_cast<double>(amount) * 1e9 / static_cast<double>(ns) : 0;
}

}  // namespace

double OpTableRow::flops_per_second() const { return amount_per_second(flops, time_ns()); }
double OpTableRow::bytes_per_second() const { return amount_per_second(bytes, time_ns()); }

std::vector<OpTableRow> op_table(const Timeline& timeline, const OpTableOptions& options) {
  return OpTableMaker(timeline).rows(options);
}

}  // namespace saturate
