// SPDX-License-Identifier: Apache-2.0
// Takes RapidJSON's events and makes a Trace of them.
#pragma once

#include "saturate/trace/read_trace.hpp"

#include <rapidjson/reader.h>

#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace saturate::trace {

/// Nanoseconds in a number of microseconds as JSON writes it, exact to the last of three decimals; the largest int64_t
/// when it is no number, or too large.
int64_t nanoseconds(std::string_view microseconds);

class TraceHandler : public rapidjson::BaseReaderHandler<rapidjson::UTF8<>, TraceHandler> {
 public:
  /// @param base_ns the file's "baseTimeNanoseconds", where it is known before it is read
  TraceHandler(const std::string& path, const ReadTraceOptions& options, int64_t base_ns = 0);

  // RapidJSON's names. False ends the reading.
  bool Null() { return value("null", false); }
  bool Bool(bool b) { return value(b ? "true" : "false", false); }
  bool RawNumber(const char* text, unsigned length, bool) { return value({text, length}, false); }
  bool Double(double number) { return value(std::to_string(number), false); }  // NaN and Inf
  bool String(const char* text, unsigned length, bool) { return value({text, length}, true); }
  bool StartObject();
  bool Key(const char* text, unsigned length, bool);
  bool EndObject(unsigned);
  bool StartArray();
  bool EndArray(unsigned);

  /// Why reading was ended; empty: it was not.
  const std::string& problem() const { return problem_; }
  int64_t base_ns() const { return base_ns_; }
  /// Events were judged by from_ns and to_ns before the file told what their times count from.
  bool judged_too_early() const { return base_came_late_ && (options_.from_ns || options_.to_ns); }
  /// Once, when all has been read. @throws DataError it was no trace.
  Trace finish();

 private:
  enum class Section { none, events, devices, distributed };
  enum class Field { other, phase, category, name, pid, tid, time, duration, id, args };
  enum class Arg : uint8_t;
  struct Event {
    char phase = 0;
    TextId category = 0, name = 0, arg_name = 0;
    int64_t pid = 0, tid = 0, time = std::numeric_limits<int64_t>::max(), duration = 0, id = 0, correlation = -1;
    bool has_details = false;
    TraceDetails details;
  };

  bool value(std::string_view text, bool quoted);
  void event_value(std::string_view text, bool quoted);
  void arg_value(std::string_view text, bool quoted);
  void header_value(std::string_view text);
  void device_value(std::string_view text);
  void distributed_value(std::string_view text);
  int64_t place_id(std::string_view text, bool quoted);
  bool capturing() const { return depth_ >= args_depth_ + 2; }
  bool in_events() const { return section_ == Section::events; }
  bool close();
  bool wanted(int64_t time) const;
  bool end_event();
  void end_span(const Event& event, EventKind kind);
  void add(const Event& event, EventKind kind);
  void add_metadata(const Event& event);
  EventKind kind_of(TextId category, TextId name);

  ReadTraceOptions options_;
  Trace trace_;
  std::string problem_;
  int64_t base_ns_ = 0;
  bool saw_events_ = false, saw_phase_ = false, root_is_array_ = false, base_came_late_ = false;

  int depth_ = 0;  // open objects and arrays
  Section section_ = Section::none;
  int events_depth_ = 1;  // of the array of events
  static constexpr int no_args = 1 << 20;
  int args_depth_ = no_args;  // inside of an event: of what holds its args
  std::string key_;           // last one of the header, of a device or of the distributed part
  Field field_ = Field::other;
  Arg arg_{};
  std::string captured_;  // JSON text of an argument that is an array or an object
  Event event_;
  std::map<uint32_t, std::vector<std::size_t>> open_;  // begun by "B", per lane
  std::map<TextId, EventKind> kinds_;
};

}  // namespace saturate::trace
