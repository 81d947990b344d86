// SPDX-License-Identifier: Apache-2.0
#include "saturate/trace/communication_time.hpp"

#include "spans.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

namespace saturate {
namespace {

enum class Source { device, gloo, c10d };
constexpr int64_t no_time = std::numeric_limits<int64_t>::min();

bool is_collective_kernel(std::string_view name) {
  if (name.starts_with("void ")) name.remove_prefix(5);
  return name.starts_with("nccl") || name.starts_with("rccl");
}

std::optional<Source> source_of(const Trace& trace, const TraceEvent& event) {
  const std::string_view name = trace.text(event.name);
  if (event.kind == EventKind::kernel && is_collective_kernel(name)) return Source::device;
  if (event.kind != EventKind::annotation && event.kind != EventKind::op) return {};
  if (name.starts_with("gloo:")) return Source::gloo;
  if (name.starts_with("c10d::") && event.kind == EventKind::op) return Source::c10d;
  return {};
}

// The parts of "gloo:all_reduce", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)", "_allgather_base" and
// "c10d::allreduce_" that say which collective it is, in one spelling. "allgather" before "gather", "allreduce" before
// "reduce".
std::string collective_of(const Trace& trace, const TraceEvent& event) {
  const TraceDetails* const details = trace.details_of(event);
  const bool told = details != nullptr && details->collective != 0;
  std::string letters;
  for (const char c : trace.text(told ? details->collective : event.name)) {
    if (c == '(') break;  // arguments of a kernel's type
    if (std::isalnum(static_cast<unsigned char>(c))) {
      letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  constexpr std::array known{"allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "sendrecv",
                             "barrier",   "gather",    "scatter",       "reduce",   "send",      "recv"};
  for (const char* const name : known) {
    if (letters.find(name) != std::string::npos) return name;
  }
  return told ? trace.text(details->collective) : trace.text(event.name);
}

// Bytes of an element: c10's names of types ("Float") and C++'s, which the profiler gives to inputs ("float").
int64_t element_bytes(std::string_view type) {
  static const std::map<std::string_view, int64_t> bytes{
      {"Float", 4},         {"float", 4},    {"Double", 8},        {"double", 8},      {"Half", 2},
      {"c10::Half", 2},     {"BFloat16", 2}, {"c10::BFloat16", 2}, {"Long", 8},        {"long int", 8},
      {"long", 8},          {"Int", 4},      {"int", 4},           {"Short", 2},       {"short int", 2},
      {"short", 2},         {"Byte", 1},     {"unsigned char", 1}, {"Char", 1},        {"signed char", 1},
      {"Bool", 1},          {"bool", 1},     {"Float8_e4m3fn", 1}, {"Float8_e5m2", 1}, {"ComplexFloat", 8},
      {"ComplexDouble", 16}};
  const auto found = bytes.find(type);
  return found == bytes.end() ? 0 : found->second;
}

// Text as JSON writes it, "[[64,128],[4]]" and "[\"float\",\"\"]": the sum over tensors of elements times bytes; 0 when
// a type is not known. Lists inside of lists of tensors say no types, and count as unknown.
int64_t bytes_of_inputs(std::string_view shapes, std::string_view types) {
  std::vector<int64_t> elements;
  int depth = 0;
  int64_t product = 1, number = -1;
  for (const char c : shapes) {
    if (c >= '0' && c <= '9') number = std::max<int64_t>(number, 0) * 10 + (c - '0');
    if ((c == ',' || c == ']') && number >= 0) product *= std::exchange(number, -1);
    if (c == '[' && ++depth == 2) product = 1;
    if (depth > 2) return 0;
    if (c == ']' && depth-- == 2) elements.push_back(product);
  }
  int64_t bytes = 0;
  std::size_t at = 0;
  for (const int64_t count : elements) {
    const std::size_t begin = types.find('"', at), end = begin == types.npos ? begin : types.find('"', begin + 1);
    if (end == types.npos) return 0;
    const std::string_view type = types.substr(begin + 1, end - begin - 1);
    at = end + 1;
    if (type.empty()) continue;  // no tensor
    const int64_t each = element_bytes(type);
    if (each == 0) return 0;
    bytes += count * each;
  }
  return bytes;
}

// As nccl-tests count them; 0: not told.
int64_t message_bytes(const Trace& trace, const TraceEvent& event, const std::string& collective, int64_t ranks) {
  const TraceDetails* const details = trace.details_of(event);
  if (details == nullptr) return 0;
  int64_t bytes = 0;
  if (details->message_elements > 0) {
    bytes = details->message_elements * element_bytes(trace.text(details->message_type));
  } else if (details->shapes != 0) {
    bytes = bytes_of_inputs(trace.text(details->shapes), trace.text(details->types));
  }
  return collective == "allgather" && ranks > 0 ? bytes * ranks : bytes;
}

struct Collective {
  uint32_t event = 0;
  int64_t begin_ns = 0, end_ns = 0, bytes = 0, ranks = -1;
  std::string name;
};

// What one device, or the CPU, spends its time with.
struct PartOfTime {
  trace::Spans communication, compute;
  std::vector<std::pair<int64_t, int64_t>> backward_ends;  // when backward's pieces of work begin, and end
};

class CommunicationParts {
 public:
  explicit CommunicationParts(const Timeline& timeline) : timeline_(timeline), trace_(timeline.trace()) {
    find_sources();
    mark_inside();
    for (uint32_t i = 0; i < trace_.events.size(); ++i) sort_in(i);
    if (!has_kernels_) add_operators();
    for (auto& [device, part] : parts_) {
      part.communication = trace::merged(std::move(part.communication));
      part.compute = trace::merged(std::move(part.compute));
      std::sort(part.backward_ends.begin(), part.backward_ends.end());
    }
  }

  CommunicationTime result() const {
    CommunicationTime time;
    for (const TraceStep& step : timeline_.steps()) {
      time.steps.push_back(split(step));
      time.total.communication_ns += time.steps.back().communication_ns;
      time.total.compute_ns += time.steps.back().compute_ns;
      time.total.overlapped_ns += time.steps.back().overlapped_ns;
      time.total.after_backward_ns += time.steps.back().after_backward_ns;
    }
    time.collectives = table();
    return time;
  }

 private:
  static constexpr int64_t cpu = -1;  // key of parts_ for what is on no device

  void find_sources() {
    for (const TraceEvent& event : trace_.events) {
      has_kernels_ = has_kernels_ || event.kind == EventKind::kernel;
      const std::optional<Source> source = source_of(trace_, event);
      // An operator of c10d only starts what the others do.
      if (source && *source != Source::c10d) use_c10d_ = false;
    }
  }

  void mark_inside() {
    in_collective_.resize(trace_.events.size());
    in_backward_.resize(trace_.events.size());
    for (uint32_t i = 0; i < trace_.events.size(); ++i) {  // parents come before their children
      const uint32_t parent = timeline_.nodes()[i].parent;
      const TraceEvent& event = trace_.events[i];
      const std::string_view name = trace_.text(event.name);
      const bool above = parent != Timeline::none;
      in_collective_[i] = (above && in_collective_[parent]) || source_of(trace_, event) || name == "record_param_comms";
      in_backward_[i] = (above && in_backward_[parent]) || name.starts_with("autograd::engine::evaluate_function") ||
                        (event.kind == EventKind::annotation && name == "backward");
    }
  }

  int64_t key(const TraceEvent& event) const {
    return trace_.lanes[event.lane].device ? trace_.lanes[event.lane].pid : has_kernels_ ? first_device() : cpu;
  }

  // Gloo's work on threads, in a trace with kernels, is held against the first device's.
  int64_t first_device() const {
    int64_t first = std::numeric_limits<int64_t>::max();
    for (const TraceLane& lane : trace_.lanes) {
      if (lane.device) first = std::min(first, lane.pid);
    }
    return first;
  }

  void sort_in(uint32_t i) {
    const TraceEvent& event = trace_.events[i];
    const std::optional<Source> source = source_of(trace_, event);
    if (source && (*source != Source::c10d || use_c10d_)) {
      parts_[key(event)].communication.emplace_back(event.start_ns, event.end_ns());
      add_collective(i);
    } else if (event.kind == EventKind::kernel && !source) {
      PartOfTime& part = parts_[key(event)];
      part.compute.emplace_back(event.start_ns, event.end_ns());
      const uint32_t launch = timeline_.launch_of(i);
      if (launch != Timeline::none && in_backward_[launch]) {
        part.backward_ends.emplace_back(event.start_ns, event.end_ns());
      }
    }
  }

  void add_collective(uint32_t i) {
    const TraceEvent& event = trace_.events[i];
    const TraceDetails* const details = trace_.details_of(event);
    Collective call{.event = i, .begin_ns = event.start_ns, .end_ns = event.end_ns(), .ranks = trace_.world_size};
    call.name = collective_of(trace_, event);
    if (details != nullptr && details->group_size > 0) call.ranks = details->group_size;
    call.bytes = message_bytes(trace_, event, call.name, call.ranks);
    calls_.push_back(std::move(call));
  }

  // Without a device, computing is the own time of operators that do not talk.
  void add_operators() {
    PartOfTime& part = parts_[cpu];
    for (uint32_t lane = 0; lane < trace_.lanes.size(); ++lane) {
      for (const TraceSegment& segment : timeline_.segments(lane)) {
        if (trace_.events[segment.event].kind != EventKind::op || in_collective_[segment.event]) continue;
        part.compute.emplace_back(segment.begin_ns, segment.end_ns);
        if (in_backward_[segment.event]) part.backward_ends.emplace_back(segment.begin_ns, segment.end_ns);
      }
    }
  }

  CommunicationSplit split(const TraceStep& step) const {
    CommunicationSplit sum;
    for (const auto& [device, part] : parts_) {
      const trace::Spans talk = trace::within(part.communication, step.begin_ns, step.end_ns);
      const trace::Spans work = trace::within(part.compute, step.begin_ns, step.end_ns);
      sum.communication_ns += trace::length(talk);
      sum.compute_ns += trace::length(work);
      sum.overlapped_ns += trace::length(trace::intersection(talk, work));
      sum.after_backward_ns += after_backward(device, part, step);
    }
    return sum;
  }

  int64_t after_backward(int64_t device, const PartOfTime& part, const TraceStep& step) const {
    const int64_t backward_end = last_end(part, step);
    if (backward_end == no_time) return 0;
    trace::Spans late;
    const auto first = std::partition_point(calls_.begin(), calls_.end(),
                                            [&](const Collective& call) { return call.begin_ns < backward_end; });
    for (auto at = first; at != calls_.end() && at->begin_ns < step.end_ns; ++at) {
      if (key(trace_.events[at->event]) == device) late.emplace_back(at->begin_ns, std::min(at->end_ns, step.end_ns));
    }
    return trace::length(trace::merged(std::move(late)));
  }

  // Of the backward's work that begins in the step; no_time: there is none.
  static int64_t last_end(const PartOfTime& part, const TraceStep& step) {
    int64_t end = no_time;
    auto at = std::lower_bound(part.backward_ends.begin(), part.backward_ends.end(), std::pair(step.begin_ns, no_time));
    for (; at != part.backward_ends.end() && at->first < step.end_ns; ++at) end = std::max(end, at->second);
    return end;
  }

  bool in_a_step(int64_t time) const {
    const auto around = [&](const TraceStep& step) { return step.begin_ns <= time && time < step.end_ns; };
    return std::any_of(timeline_.steps().begin(), timeline_.steps().end(), around);
  }

  std::vector<CollectiveTime> table() const {
    std::map<std::string, CollectiveTime> rows;
    for (const Collective& call : calls_) {
      if (!in_a_step(call.begin_ns)) continue;
      CollectiveTime& row = rows[call.name];
      row.name = call.name;
      ++row.count;
      row.ns += call.end_ns - call.begin_ns;
      if (call.bytes <= 0) continue;
      row.bytes += call.bytes;
      row.sized_ns += call.end_ns - call.begin_ns;
      row.bus_bytes += static_cast<double>(call.bytes) * bus_factor(call.name, call.ranks);
    }
    std::vector<CollectiveTime> result;
    for (auto& [name, row] : rows) result.push_back(std::move(row));
    std::stable_sort(result.begin(), result.end(),
                     [](const CollectiveTime& a, const CollectiveTime& b) { return a.ns > b.ns; });
    return result;
  }

  const Timeline& timeline_;
  const Trace& trace_;
  bool has_kernels_ = false, use_c10d_ = true;
  std::vector<bool> in_collective_, in_backward_;
  std::map<int64_t, PartOfTime> parts_;  // by device
  std::vector<Collective> calls_;        // in the order of their begins
};

}  // namespace

double CollectiveTime::bus_bytes_per_second() const {
  return sized_ns > 0 ? bus_bytes * 1e9 / static_cast<double>(sized_ns) : 0;
}

double bus_factor(const std::string& collective, int64_t ranks) {
  if (ranks < 2) return 1;
  const double n = static_cast<double>(ranks);
  if (collective == "allreduce") return 2 * (n - 1) / n;
  if (collective == "allgather" || collective == "reducescatter" || collective == "alltoall") return (n - 1) / n;
  return 1;
}

CommunicationTime communication_time(const Timeline& timeline) { return CommunicationParts(timeline).result(); }

}  // namespace saturate
