// SPDX-License-Identifier: Apache-2.0
#include "memory_json.hpp"

#include "../audit/write_file.hpp"
#include "saturate/error.hpp"
#include "saturate/observe/memory_report.hpp"

#include <array>
#include <fstream>
#include <sstream>

namespace saturate {
namespace detail {
namespace {

constexpr const char* format_name = "saturate.memory";
constexpr int64_t format_version = 1;

constexpr std::array<const char*, memory_kinds> json_names = {"parameters", "optimizer_state", "gradients",
                                                              "inputs",     "activations",     "workspace"};

std::string text_of(const Json& json, int indent) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

std::string read_name(const Json& json) { return read<std::string>(json, "name"); }

// One list of members per struct serves both directions, so that what is written is what is read.
class Writer {
 public:
  template <class T>
  void operator()(const char* name, const T& value) {
    json[name] = one(value);
  }
  Json json = Json::object();

 private:
  template <class T>
  static Json one(const T& value);
};

class Reader {
 public:
  explicit Reader(const Json& json) : json_(json) {}
  template <class T>
  void operator()(const char* name, T& value) {
    one(member(json_, name), name, value);
  }

 private:
  template <class T>
  static void one(const Json& json, const char* name, T& value);
  const Json& json_;
};

void members(auto& visit, auto& v) requires std::same_as<std::remove_cvref_t<decltype(v)>, MemoryByKind> {
  for (std::size_t kind = 0; kind < memory_kinds; ++kind) visit(json_names[kind], v.bytes[kind]);
}
void members(auto& visit, auto& v) requires std::same_as<std::remove_cvref_t<decltype(v)>, AllocatorState> {
  visit("reserved_bytes", v.reserved_bytes);
  visit("allocated_bytes", v.allocated_bytes);
  visit("inactive_split_bytes", v.inactive_split_bytes);
  visit("retries", v.retries);
  visit("out_of_memory", v.out_of_memory);
}
void members(auto& visit, auto& v) requires std::same_as<std::remove_cvref_t<decltype(v)>, DeviceMemory> {
  visit("device", v.device);
  visit("before", v.before);
  visit("after", v.after);
  visit("peak", v.peak);
  visit("at_peak", v.at_peak);
  visit("allocations", v.allocations);
  visit("allocator", v.allocator);
}
void members(auto& visit, auto& v) requires std::same_as<std::remove_cvref_t<decltype(v)>, PhaseMemory> {
  visit("name", v.name);
  visit("seconds", v.seconds);
  visit("peak_bytes", v.peak_bytes);
  visit("at_end", v.at_end);
}
void members(auto& visit, auto& v) requires std::same_as<std::remove_cvref_t<decltype(v)>, ModuleMemory> {
  visit("name", v.name);
  visit("activations", v.activations);
  visit("own_activations", v.own_activations);
  visit("forward_peak", v.forward_peak);
}
void members(auto& visit, auto& v) requires std::same_as<std::remove_cvref_t<decltype(v)>, MemoryReport> {
  visit("devices", v.devices);
  visit("phases", v.phases);
  visit("modules", v.modules);
  visit("slot_bytes", v.slot_bytes);
  visit("resident_bytes", v.resident_bytes);
  visit("resident_peak_bytes", v.resident_peak_bytes);
  visit("saved_tensors_known", v.saved_tensors_known);
  visit("optimizer_state_known", v.optimizer_state_known);
  visit("timeline", v.timeline);
}

template <class T>
inline constexpr bool is_vector = false;
template <class T>
inline constexpr bool is_vector<std::vector<T>> = true;
template <class T>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;

template <class T>
Json Writer::one(const T& value) {
  if constexpr (std::is_arithmetic_v<T> || std::same_as<T, std::string>) {
    return value;
  } else if constexpr (std::same_as<T, MemoryTimeline>) {
    return to_json(value);
  } else if constexpr (is_optional<T>) {
    return value ? one(*value) : Json();
  } else if constexpr (is_vector<T>) {
    Json array = Json::array();
    for (const auto& element : value) array.push_back(one(element));
    return array;
  } else {
    Writer inner;
    members(inner, value);
    return std::move(inner.json);
  }
}

template <class T>
void Reader::one(const Json& json, const char* name, T& value) {
  if constexpr (std::is_arithmetic_v<T> || std::same_as<T, std::string>) {
    value = read<T>(json, name);
  } else if constexpr (std::same_as<T, MemoryTimeline>) {
    value = timeline_from_json(json);
  } else if constexpr (is_optional<T>) {
    if (!json.is_null()) one(json, name, value.emplace());
  } else if constexpr (is_vector<T>) {
    if (!json.is_array()) bad_snapshot(std::string("'") + name + "' is no array");
    for (const Json& element : json) one(element, name, value.emplace_back());
  } else {
    Reader inner(json);
    members(inner, value);
  }
}

Json to_json(const MemorySample& sample) {
  Json row = {sample.seconds, sample.device, sample.phase, sample.mark};
  for (const int64_t bytes : sample.memory.bytes) row.push_back(bytes);
  return row;
}

MemorySample sample_from_json(const Json& row) {
  if (!row.is_array() || row.size() != 4 + memory_kinds) bad_snapshot("a sample is no row of 10 numbers");
  MemorySample sample{read<double>(row[0], "seconds"),
                      read<int64_t>(row[1], "device"),
                      read<int64_t>(row[2], "phase"),
                      read<int64_t>(row[3], "mark"),
                      {}};
  for (std::size_t k = 0; k < memory_kinds; ++k) sample.memory.bytes[k] = read<int64_t>(row[4 + k], json_names[k]);
  return sample;
}

void require_index(int64_t index, std::size_t size, const char* what) {
  if (index >= 0 && index < static_cast<int64_t>(size)) return;
  bad_snapshot(std::string("a sample's ") + what + " is number " + std::to_string(index) + " of " +
               std::to_string(size));
}

}  // namespace

const char* json_name(MemoryKind kind) { return json_names[static_cast<std::size_t>(kind)]; }

void bad_snapshot(const std::string& what) { throw DataError("memory snapshot: " + what); }

Json parse_snapshot(std::string_view text) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    bad_snapshot(error.what());
  }
}

const Json& member(const Json& json, const char* name) {
  if (!json.is_object()) bad_snapshot(std::string("where '") + name + "' should be is no object");
  const auto found = json.find(name);
  if (found == json.end()) bad_snapshot(std::string("'") + name + "' is missing");
  return *found;
}

Json to_json(const MemoryTimeline& timeline) {
  Json json = {{"devices", timeline.devices}, {"phases", timeline.phases},   {"marks", timeline.marks},
               {"kinds", json_names},         {"seconds", timeline.seconds}, {"samples", Json::array()}};
  for (const MemorySample& sample : timeline.samples) json["samples"].push_back(to_json(sample));
  return json;
}

MemoryTimeline timeline_from_json(const Json& json) {
  MemoryTimeline timeline;
  timeline.devices = read_all(json, "devices", read_name);
  timeline.phases = read_all(json, "phases", read_name);
  timeline.marks = read_all(json, "marks", read_name);
  const auto kinds = read_all(json, "kinds", read_name);
  if (!std::equal(kinds.begin(), kinds.end(), json_names.begin(), json_names.end())) bad_snapshot("other 'kinds'");
  timeline.seconds = read_member<double>(json, "seconds");
  timeline.samples = read_all(json, "samples", sample_from_json);
  for (const MemorySample& sample : timeline.samples) {
    require_index(sample.device, timeline.devices.size(), "device");
    require_index(sample.phase, timeline.phases.size(), "phase");
    require_index(sample.mark, timeline.marks.size(), "mark");
  }
  return timeline;
}

}  // namespace detail

std::string MemoryTimeline::to_json() const { return detail::text_of(detail::to_json(*this), -1); }

MemoryTimeline MemoryTimeline::from_json(std::string_view text) {
  return detail::timeline_from_json(detail::parse_snapshot(text));
}

std::string MemoryReport::to_json() const {
  detail::Writer writer;
  writer("format", std::string(detail::format_name));
  writer("version", detail::format_version);
  detail::members(writer, *this);
  return detail::text_of(writer.json, -1);
}

MemoryReport MemoryReport::from_json(std::string_view text) {
  const detail::Json json = detail::parse_snapshot(text);
  if (detail::read_member<std::string>(json, "format") != detail::format_name) {
    detail::bad_snapshot("'format' is not saturate.memory");
  }
  if (detail::read_member<int64_t>(json, "version") != detail::format_version) {
    detail::bad_snapshot("it is of another 'version' than 1");
  }
  MemoryReport report;
  detail::Reader reader(json);
  detail::members(reader, report);
  if (report.devices.empty()) detail::bad_snapshot("'devices' is empty");
  return report;
}

void MemoryReport::save_snapshot(const std::string& path) const { audit::write_file(path, to_json()); }

MemoryReport MemoryReport::load_snapshot(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) throw DataError("memory snapshot: cannot read " + path);
  try {
    return from_json(text.str());
  } catch (const DataError& error) {
    throw DataError(path + ": " + error.what());
  }
}

}  // namespace saturate
