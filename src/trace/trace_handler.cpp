// SPDX-License-Identifier: Apache-2.0
#include "trace_handler.hpp"

#include "saturate/error.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <unordered_map>
#include <utility>

namespace saturate::trace {

enum class TraceHandler::Arg : uint8_t {
  unknown,
  name,
  external_id,
  sequence,
  forward_thread,
  shapes,
  types,
  strides,
  values,
  copy_bytes,
  memory_bytes,
  address,
  total_allocated,
  total_reserved,
  device_type,
  device_id,
  device,
  stream,
  flops,
  collective,
  message_type,
  message_elements,
  group_size,
  grid,
  block,
  correlation,
  labels
};

namespace {

// Nanoseconds. So that no sum or difference of two of them, and a duration, leaves 64 bits.
constexpr int64_t most_time = 4'000'000'000'000'000'000, most_duration = 1'000'000'000'000'000'000;
constexpr int64_t no_time = std::numeric_limits<int64_t>::max();
constexpr auto dropped = std::numeric_limits<std::size_t>::max();

bool outside(int64_t time, int64_t most) { return time < -most || time > most; }

std::string bad_number(const char* what, std::string_view text) {
  return '"' + std::string(what) + "\" is " + std::string(text.substr(0, 40)) + ", which is no time";
}

int64_t whole(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size()) return number;
  const double value = std::strtod(std::string(text).c_str(), nullptr);  // an exponent, a fraction, more than 63 bits
  if (!(std::abs(value) < 9e18)) return -1;
  return static_cast<int64_t>(value);
}

void add_quoted(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20) {
      constexpr char digits[] = "0123456789abcdef";
      out += "\\u00";
      out += digits[c >> 4];
      out += digits[c & 15];
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  out += '"';
}

// Of "[16,4,1]".
int32_t product_of(std::string_view list) {
  int64_t product = 1;
  const char *at = list.data(), *const end = at + list.size();
  while (at < end) {
    int32_t factor = 0;
    const auto parsed = std::from_chars(at, end, factor);
    if (parsed.ec == std::errc::result_out_of_range || factor < 0) return -1;
    if (parsed.ec == std::errc()) product *= factor;
    if (product >= int64_t{1} << 31) return -1;
    at = parsed.ptr == at ? at + 1 : parsed.ptr;
  }
  return product > 0 ? static_cast<int32_t>(product) : -1;
}

bool is_device_kind(EventKind kind) {
  return kind == EventKind::kernel || kind == EventKind::memcpy || kind == EventKind::memset ||
         kind == EventKind::gpu_annotation || kind == EventKind::sync;
}

}  // namespace

int64_t nanoseconds(std::string_view text) {
  if (text.empty()) return no_time;
  const bool negative = text[0] == '-';
  std::size_t at = negative ? 1 : 0;
  int64_t number = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9' && number < 900'000'000'000'000; ++at) {
    number = number * 10 + (text[at] - '0');
  }
  int decimals = 0;
  if (at < text.size() && text[at] == '.') {
    for (++at; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
      if (decimals == 3) continue;  // less than a nanosecond
      number = number * 10 + (text[at] - '0');
      ++decimals;
    }
  }
  if (at != text.size()) {  // an exponent
    const std::string copy(text);
    char* end = nullptr;
    const double value = std::strtod(copy.c_str(), &end) * 1e3;
    return end == copy.c_str() + copy.size() && std::abs(value) < 9e18 ? std::llround(value) : no_time;
  }
  for (; decimals < 3; ++decimals) number *= 10;
  return negative ? -number : number;
}

TraceHandler::TraceHandler(const std::string& path, const ReadTraceOptions& options, int64_t base_ns)
    : options_(options), base_ns_(base_ns) {
  trace_.name = path;
}

bool TraceHandler::StartObject() {
  if (args_depth_ != no_args && depth_ >= args_depth_ + 1) captured_ += '{';
  ++depth_;
  if (in_events() && depth_ == events_depth_ + 1) event_ = {};
  if (in_events() && depth_ == events_depth_ + 2 && field_ == Field::args) args_depth_ = depth_ - 1;
  if (depth_ == 2 && key_ == "distributedInfo") section_ = Section::distributed;
  if (section_ == Section::devices && depth_ == 3) trace_.devices.emplace_back();
  return true;
}

bool TraceHandler::StartArray() {
  if (args_depth_ != no_args && depth_ >= args_depth_ + 1) captured_ += '[';
  ++depth_;
  if (depth_ == 1) {
    root_is_array_ = saw_events_ = true;
    section_ = Section::events;
    events_depth_ = 1;
  }
  if (depth_ == 2 && !root_is_array_) {
    if (key_ == "traceEvents") {
      saw_events_ = true;
      section_ = Section::events;
      events_depth_ = 2;
    } else if (key_ == "deviceProperties") {
      section_ = Section::devices;
    }
  }
  return true;
}

bool TraceHandler::Key(const char* text, unsigned length, bool) {
  const std::string_view key(text, length);
  if (in_events() && depth_ == events_depth_ + 1) {
    static const std::unordered_map<std::string_view, Field> fields{
        {"ph", Field::phase},     {"cat", Field::category}, {"name", Field::name},
        {"pid", Field::pid},      {"tid", Field::tid},      {"ts", Field::time},
        {"dur", Field::duration}, {"id", Field::id},        {"args", Field::args}};
    const auto found = fields.find(key);
    field_ = found == fields.end() ? Field::other : found->second;
  } else if (args_depth_ != no_args && depth_ == args_depth_ + 1) {
    static const std::unordered_map<std::string_view, Arg> args{{"name", Arg::name},
                                                                {"labels", Arg::labels},
                                                                {"External id", Arg::external_id},
                                                                {"external id", Arg::external_id},
                                                                {"Sequence number", Arg::sequence},
                                                                {"Fwd thread id", Arg::forward_thread},
                                                                {"Input Dims", Arg::shapes},
                                                                {"Input dims", Arg::shapes},
                                                                {"Input type", Arg::types},
                                                                {"Input Strides", Arg::strides},
                                                                {"Concrete Inputs", Arg::values},
                                                                {"bytes", Arg::copy_bytes},
                                                                {"Bytes", Arg::memory_bytes},
                                                                {"Addr", Arg::address},
                                                                {"Total Allocated", Arg::total_allocated},
                                                                {"Total Reserved", Arg::total_reserved},
                                                                {"Device Type", Arg::device_type},
                                                                {"Device Id", Arg::device_id},
                                                                {"device", Arg::device},
                                                                {"stream", Arg::stream},
                                                                {"flops", Arg::flops},
                                                                {"Collective name", Arg::collective},
                                                                {"dtype", Arg::message_type},
                                                                {"In msg nelems", Arg::message_elements},
                                                                {"Group size", Arg::group_size},
                                                                {"grid", Arg::grid},
                                                                {"block", Arg::block},
                                                                {"correlation", Arg::correlation}};
    const auto found = args.find(key);
    arg_ = found == args.end() ? Arg::unknown : found->second;
  } else if (args_depth_ != no_args) {
    add_quoted(captured_, key);
    captured_ += ':';
  } else if (!in_events()) {
    key_.assign(key);
  }
  return true;
}

bool TraceHandler::close() {
  --depth_;
  if (args_depth_ != no_args) {
    if (depth_ == args_depth_)
      args_depth_ = no_args;
    else if (depth_ == args_depth_ + 1) {
      if (!captured_.empty() && captured_[captured_.size() - 2] == ',') captured_.erase(captured_.size() - 2, 1);
      arg_value(captured_, false);
      captured_.clear();
    } else {
      if (captured_[captured_.size() - 2] == ',') captured_.erase(captured_.size() - 2, 1);
      captured_ += ',';
    }
    return true;
  }
  if (in_events() && depth_ == events_depth_) return end_event();
  if (depth_ == 1 && section_ != Section::none && !root_is_array_) section_ = Section::none;
  return true;
}

bool TraceHandler::EndObject(unsigned) {
  if (capturing()) captured_ += '}';
  return close();
}

bool TraceHandler::EndArray(unsigned) {
  if (capturing()) captured_ += ']';
  return close();
}

bool TraceHandler::value(std::string_view text, bool quoted) {
  if (args_depth_ != no_args) {
    if (capturing()) {
      if (quoted)
        add_quoted(captured_, text);
      else
        captured_ += text;
      captured_ += ',';
    } else {
      arg_value(text, quoted);
    }
  } else if (in_events()) {
    if (depth_ == events_depth_ + 1) event_value(text, quoted);
    return problem_.empty();
  } else if (section_ == Section::devices && depth_ == 3) {
    device_value(text);
  } else if (section_ == Section::distributed && depth_ == 2) {
    distributed_value(text);
  } else if (depth_ == 1) {
    header_value(text);
    return problem_.empty();
  }
  return true;
}

// Rows of a page beside the processes are named by texts ("Spans").
int64_t TraceHandler::place_id(std::string_view text, bool quoted) {
  if (!quoted) return whole(text);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size()) return number;
  return -1 - static_cast<int64_t>(trace_.intern(text));
}

void TraceHandler::event_value(std::string_view text, bool quoted) {
  switch (field_) {
    case Field::phase:
      event_.phase = text.empty() ? '\0' : text[0];
      saw_phase_ = true;
      break;
    case Field::category: event_.category = trace_.intern(text); break;
    case Field::name: event_.name = trace_.intern(text); break;
    case Field::pid: event_.pid = place_id(text, quoted); break;
    case Field::tid: event_.tid = place_id(text, quoted); break;
    case Field::time: event_.time = nanoseconds(text); break;
    case Field::duration:
      event_.duration = nanoseconds(text);
      if (outside(event_.duration, most_duration)) problem_ = bad_number("dur", text);
      break;
    case Field::id: event_.id = place_id(text, quoted); break;
    case Field::args:
    case Field::other: break;
  }
}

void TraceHandler::arg_value(std::string_view text, bool) {
  TraceDetails& d = event_.details;
  switch (arg_) {
    case Arg::unknown: return;
    case Arg::name:
    case Arg::labels: event_.arg_name = trace_.intern(text); return;
    case Arg::correlation: {
      const int64_t number = whole(text);
      event_.correlation = number < 0 || number > std::numeric_limits<int32_t>::max() ? -1 : number;
      return;
    }
    case Arg::external_id: d.external_id = whole(text); break;
    case Arg::sequence: d.sequence = whole(text); break;
    case Arg::forward_thread: d.forward_thread = whole(text); break;
    case Arg::shapes: d.shapes = trace_.intern(text); break;
    case Arg::types: d.types = trace_.intern(text); break;
    case Arg::strides: d.strides = trace_.intern(text); break;
    case Arg::values: d.values = trace_.intern(text); break;
    case Arg::copy_bytes:
    case Arg::memory_bytes: d.bytes = whole(text); break;
    case Arg::address: d.address = whole(text); break;
    case Arg::total_allocated: d.total_allocated = whole(text); break;
    case Arg::total_reserved: d.total_reserved = whole(text); break;
    case Arg::device_type: d.device_type = static_cast<int32_t>(whole(text)); break;
    case Arg::device_id:
    case Arg::device: d.device = static_cast<int32_t>(whole(text)); break;
    case Arg::stream: d.stream = whole(text); break;
    case Arg::flops: d.flops = whole(text); break;
    case Arg::collective: d.collective = trace_.intern(text); break;
    case Arg::message_type: d.message_type = trace_.intern(text); break;
    case Arg::message_elements: d.message_elements = whole(text); break;
    case Arg::group_size: d.group_size = whole(text); break;
    case Arg::grid: d.grid_blocks = product_of(text); break;
    case Arg::block: d.block_threads = product_of(text); break;
  }
  event_.has_details = true;
}

void TraceHandler::header_value(std::string_view text) {
  if (key_ == "baseTimeNanoseconds") {
    const int64_t before = base_ns_;
    base_ns_ = whole(text);
    if (outside(base_ns_, most_time)) problem_ = bad_number("baseTimeNanoseconds", text);
    if (saw_events_ && base_ns_ != before) base_came_late_ = true;
  }
  if (key_ == "host_name")
    trace_.host = text;
  else if (key_ == "with_flops")
    trace_.with_flops = whole(text) > 0;
  else if (key_ == "record_shapes")
    trace_.record_shapes = whole(text) > 0;
  else if (key_ == "with_stack")
    trace_.with_stack = whole(text) > 0;
  else if (key_ == "profile_memory")
    trace_.profile_memory = whole(text) > 0;
}

void TraceHandler::device_value(std::string_view text) {
  if (trace_.devices.empty()) return;  // a value that is in no device
  TraceDevice& device = trace_.devices.back();
  if (key_ == "id")
    device.id = whole(text);
  else if (key_ == "name")
    device.name = text;
  else if (key_ == "totalGlobalMem")
    device.memory_bytes = whole(text);
  else if (key_ == "computeMajor")
    device.compute_major = static_cast<int>(whole(text));
  else if (key_ == "computeMinor")
    device.compute_minor = static_cast<int>(whole(text));
  else if (key_ == "numSms")
    device.multiprocessors = static_cast<int>(whole(text));
}

void TraceHandler::distributed_value(std::string_view text) {
  if (key_ == "rank")
    trace_.rank = static_cast<int>(whole(text));
  else if (key_ == "world_size")
    trace_.world_size = static_cast<int>(whole(text));
  else if (key_ == "backend")
    trace_.backend = text;
}

EventKind TraceHandler::kind_of(TextId category, TextId name) {
  static const std::unordered_map<std::string_view, EventKind> known{{"cpu_op", EventKind::op},
                                                                     {"Operator", EventKind::op},
                                                                     {"user_annotation", EventKind::annotation},
                                                                     {"python_function", EventKind::python},
                                                                     {"cuda_runtime", EventKind::runtime},
                                                                     {"cuda_driver", EventKind::runtime},
                                                                     {"Runtime", EventKind::runtime},
                                                                     {"kernel", EventKind::kernel},
                                                                     {"Kernel", EventKind::kernel},
                                                                     {"gpu_memcpy", EventKind::memcpy},
                                                                     {"Memcpy", EventKind::memcpy},
                                                                     {"gpu_memset", EventKind::memset},
                                                                     {"Memset", EventKind::memset},
                                                                     {"gpu_user_annotation", EventKind::gpu_annotation},
                                                                     {"cuda_sync", EventKind::sync},
                                                                     {"overhead", EventKind::overhead},
                                                                     {"Overhead", EventKind::overhead}};
  if (trace_.text(name) == "[memory]") return EventKind::memory;
  const auto place = kinds_.find(category);
  if (place != kinds_.end()) return place->second;
  const auto found = known.find(trace_.text(category));
  return kinds_[category] = found == known.end() ? EventKind::other : found->second;
}

bool TraceHandler::wanted(int64_t time) const {
  const int64_t at = time + base_ns_;
  return (!options_.from_ns || at >= *options_.from_ns) && (!options_.to_ns || at < *options_.to_ns);
}

bool TraceHandler::end_event() {
  const Event& event = event_;
  constexpr std::string_view timed = "XBEiIsf";
  if (event.phase != 0 && timed.find(event.phase) != timed.npos && outside(event.time, most_time)) {
    problem_ = "an event (\"" + trace_.text(event.name) + "\") has no \"ts\" that is a time in microseconds";
    return false;
  }
  switch (event.phase) {
    case 'X':
    case 'B':
    case 'i':
    case 'I': add(event, kind_of(event.category, event.name)); break;
    case 'E': end_span(event, EventKind::other); break;
    case 'M': add_metadata(event); break;
    case 's':
    case 'f':
      if (options_.keep_flows && wanted(event.time)) {
        const std::string& category = trace_.text(event.category);
        trace_.flows.push_back({.id = event.id,
                                .time_ns = event.time,
                                .lane = trace_.lane(event.pid, event.tid),
                                .forward_backward = category == "fwdbwd" || category == "fwd_bwd",
                                .finish = event.phase == 'f'});
      }
      break;
    default: break;
  }
  if (static_cast<int64_t>(trace_.events.size()) > options_.max_events) {
    problem_ = "more than " + std::to_string(options_.max_events) +
               " events (ReadTraceOptions::max_events); read a part of the time (from_ns, to_ns)";
    return false;
  }
  return true;
}

void TraceHandler::add(const Event& event, EventKind kind) {
  const bool left_out = (kind == EventKind::python && !options_.keep_python) ||
                        trace_.text(event.category) == "Trace";  // how long the profiler ran
  if (left_out || !wanted(event.time)) {
    if (event.phase == 'B') open_[trace_.lane(event.pid, event.tid)].push_back(dropped);  // its "E" will come
    return;
  }
  if (event.phase == 'i' && kind != EventKind::memory) return;  // marks of the page, like the end of the record
  TraceEvent added{.start_ns = event.time,
                   .duration_ns = event.duration < 0 ? 0 : event.duration,
                   .name = event.name,
                   .lane = trace_.lane(event.pid, event.tid),
                   .correlation = static_cast<int32_t>(event.correlation),
                   .kind = kind};
  if (event.has_details) {
    added.details = static_cast<uint32_t>(trace_.details.size());
    trace_.details.push_back(event.details);
  }
  if (is_device_kind(kind)) trace_.lanes[added.lane].device = true;
  if (event.phase == 'B') open_[added.lane].push_back(trace_.events.size());
  trace_.events.push_back(added);
}

void TraceHandler::end_span(const Event& event, EventKind) {
  auto& open = open_[trace_.lane(event.pid, event.tid)];
  if (open.empty()) return;
  const std::size_t place = open.back();
  open.pop_back();
  if (place == dropped) return;
  TraceEvent& begun = trace_.events[place];
  begun.duration_ns = std::clamp<int64_t>(event.time - begun.start_ns, 0, most_duration);
}

void TraceHandler::add_metadata(const Event& event) {
  const std::string& what = trace_.text(event.name);
  if (what == "thread_name") trace_.lanes[trace_.lane(event.pid, event.tid)].thread = trace_.text(event.arg_name);
  if (what != "process_name") return;
  TraceLane process{.pid = event.pid, .process = trace_.text(event.arg_name)};
  trace_.lane(event.pid, event.tid);
  for (TraceLane& lane : trace_.lanes) {
    if (lane.pid == event.pid) lane.process = process.process;
  }
}

Trace TraceHandler::finish() {
  if (!saw_events_ || (!saw_phase_ && root_is_array_)) {
    throw DataError(trace_.name +
                    " is JSON, but no trace: it has no \"traceEvents\" as PyTorch's profiler writes them");
  }
  for (TraceLane& lane : trace_.lanes) {  // named before or after the lane came up
    if (!lane.process.empty()) continue;
    for (const TraceLane& other : trace_.lanes) {
      if (other.pid == lane.pid && !other.process.empty()) lane.process = other.process;
    }
  }
  trace_.sort();
  const int64_t origin = trace_.begin_ns();
  for (TraceEvent& event : trace_.events) event.start_ns -= origin;
  for (TraceFlow& flow : trace_.flows) flow.time_ns -= origin;
  trace_.origin_ns = base_ns_ + origin;
  return std::move(trace_);
}

}  // namespace saturate::trace
