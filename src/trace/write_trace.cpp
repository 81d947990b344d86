// SPDX-License-Identifier: Apache-2.0
#include "saturate/trace/write_trace.hpp"

#include "saturate/error.hpp"

#include <unistd.h>
#include <zlib.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

namespace saturate {
namespace {

/// zlib writes plain files as well, so there is one way.
class OutputText {
 public:
  explicit OutputText(const std::string& path) : path_(path), partial_(path + ".part" + std::to_string(getpid())) {
    file_ = gzopen(partial_.c_str(), path.ends_with(".gz") ? "wb6" : "wbT");
    if (file_ == nullptr) fail(std::strerror(errno));
    gzbuffer(file_, 1 << 18);
  }
  ~OutputText() {
    if (file_ == nullptr) return;
    gzclose(file_);
    std::remove(partial_.c_str());
  }
  OutputText(const OutputText&) = delete;
  OutputText& operator=(const OutputText&) = delete;

  void write(std::string_view text) {
    if (gzwrite(file_, text.data(), static_cast<unsigned>(text.size())) != static_cast<int>(text.size())) {
      int number = 0;
      const std::string why = gzerror(file_, &number);
      fail(number == Z_ERRNO ? std::strerror(errno) : why);
    }
  }
  void close() {
    const int result = gzclose(file_);
    file_ = nullptr;
    std::error_code error;
    if (result == Z_OK) std::filesystem::rename(partial_, path_, error);
    if (result == Z_OK && !error) return;
    std::remove(partial_.c_str());
    fail(error ? error.message() : "the disk may be full");
  }

 private:
  [[noreturn]] void fail(const std::string& why) const { throw Error(path_ + " cannot be written: " + why); }

  std::string path_, partial_;
  gzFile file_ = nullptr;
};

const char* category_of(EventKind kind) {
  switch (kind) {
    case EventKind::op: return "cpu_op";
    case EventKind::annotation: return "user_annotation";
    case EventKind::python: return "python_function";
    case EventKind::runtime: return "cuda_runtime";
    case EventKind::kernel: return "kernel";
    case EventKind::memcpy: return "gpu_memcpy";
    case EventKind::memset: return "gpu_memset";
    case EventKind::gpu_annotation: return "gpu_user_annotation";
    case EventKind::sync: return "cuda_sync";
    case EventKind::memory: return "cpu_instant_event";
    case EventKind::overhead: return "overhead";
    case EventKind::other: break;
  }
  return "other";
}

std::string quoted_text(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

class TraceWriter {
 public:
  TraceWriter(const Trace& trace, OutputText& out) : trace_(trace), out_(out), begin_(trace.begin_ns()) {
    for (std::size_t id = 0; id < trace.texts(); ++id)
      quoted_.push_back(quoted_text(trace.text(static_cast<TextId>(id))));
    is_json_.assign(quoted_.size(), unknown);
  }

  void run() {
    header();
    line_ = "\"traceEvents\":[";
    flush();
    for (const TraceLane& lane : trace_.lanes) name_lane(lane);
    for (const TraceEvent& event : trace_.events) add(event);
    for (const TraceFlow& flow : trace_.flows) add(flow);
    line_ = "\n]}\n";
    flush();
  }

 private:
  enum Json : char { unknown, yes, no };

  void flush() {
    out_.write(line_);
    line_.clear();
  }

  void header() {
    nlohmann::ordered_json head{{"schemaVersion", 1}, {"displayTimeUnit", "ms"}};
    head["baseTimeNanoseconds"] = trace_.origin_ns + begin_;
    head["traceName"] = trace_.name;
    if (!trace_.host.empty()) head["host_name"] = trace_.host;
    if (trace_.with_flops) head["with_flops"] = 1;
    if (trace_.record_shapes) head["record_shapes"] = 1;
    if (trace_.with_stack) head["with_stack"] = 1;
    if (trace_.profile_memory) head["profile_memory"] = 1;
    if (trace_.rank >= 0) {
      head["distributedInfo"] = {{"backend", trace_.backend}, {"rank", trace_.rank}, {"world_size", trace_.world_size}};
    }
    head["deviceProperties"] = nlohmann::ordered_json::array();
    for (const TraceDevice& device : trace_.devices) {
      head["deviceProperties"].push_back({{"id", device.id},
                                          {"name", device.name},
                                          {"totalGlobalMem", device.memory_bytes},
                                          {"computeMajor", device.compute_major},
                                          {"computeMinor", device.compute_minor},
                                          {"numSms", device.multiprocessors}});
    }
    line_ = head.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    line_.back() = ',';  // the closing brace comes behind the events
    flush();
  }

  /// Up to where the members of an event's own come.
  void open(const char* phase, std::string_view quoted_name, uint32_t lane) {
    open(phase, quoted_name, trace_.lanes[lane]);
  }
  void open(const char* phase, std::string_view quoted_name, const TraceLane& lane) {
    line_ += any_ ? ",\n{\"ph\":\"" : "\n{\"ph\":\"";
    any_ = true;
    line_ += phase;
    line_ += "\",\"name\":";
    line_ += quoted_name;
    line_ += ",\"pid\":" + std::to_string(lane.pid) + ",\"tid\":" + std::to_string(lane.tid);
  }

  void name_lane(const TraceLane& lane) {
    const auto name = [&](const char* quoted_what, const std::string& text) {
      if (text.empty()) return;
      open("M", quoted_what, lane);
      line_ += ",\"ts\":0,\"args\":{\"name\":" + quoted_text(text) + "}}";
    };
    name("\"process_name\"", lane.process);
    name("\"thread_name\"", lane.thread);
    flush();
  }

  void add_microseconds(const char* key, int64_t ns) {
    char text[64];
    const int64_t size = ns < 0 ? -ns : ns;
    std::snprintf(text, sizeof text, ",\"%s\":%s%lld.%03lld", key, ns < 0 ? "-" : "",
                  static_cast<long long>(size / 1000), static_cast<long long>(size % 1000));
    line_ += text;
  }

  void add(const TraceEvent& event) {
    const bool instant = event.kind == EventKind::memory;
    open(instant ? "i" : "X", quoted_[event.name], event.lane);
    line_ += ",\"cat\":\"" + std::string(category_of(event.kind)) + '"';
    add_microseconds("ts", event.start_ns - begin_);
    if (instant) {
      line_ += ",\"s\":\"t\"";
    } else {
      add_microseconds("dur", event.duration_ns);
    }
    add_arguments(event);
    line_ += '}';
    flush();
  }

  void add(const TraceFlow& flow) {
    open(flow.finish ? "f" : "s", flow.forward_backward ? "\"fwdbwd\"" : "\"ac2g\"", flow.lane);
    line_ += flow.forward_backward ? ",\"cat\":\"fwdbwd\"" : ",\"cat\":\"ac2g\"";
    line_ += ",\"id\":" + std::to_string(flow.id);
    if (flow.finish) line_ += ",\"bp\":\"e\"";
    add_microseconds("ts", flow.time_ns - begin_);
    line_ += '}';
    flush();
  }

  void begin_argument(const char* key) {
    line_ += any_argument_ ? ",\"" : ",\"args\":{\"";
    any_argument_ = true;
    line_ += key;
    line_ += "\":";
  }
  void number(const char* key, int64_t value, int64_t none = -1) {
    if (value == none) return;
    begin_argument(key);
    line_ += std::to_string(value);
  }
  void text(const char* key, TextId id) {
    if (id == 0) return;
    begin_argument(key);
    line_ += quoted_[id];
  }
  void json(const char* key, TextId id) {
    if (id == 0) return;
    begin_argument(key);
    Json& known = is_json_[id];
    if (known == unknown) known = nlohmann::json::accept(trace_.text(id)) ? yes : no;
    line_ += known == yes ? trace_.text(id) : quoted_[id];
  }
  void product(const char* key, int32_t value) {
    if (value < 0) return;
    begin_argument(key);
    line_ += "[" + std::to_string(value) + ",1,1]";
  }

  void add_arguments(const TraceEvent& event) {
    any_argument_ = false;
    if (const TraceDetails* d = trace_.details_of(event)) {
      number("External id", d->external_id);
      number("Sequence number", d->sequence);
      number("Fwd thread id", d->forward_thread);
      json("Input Dims", d->shapes);
      json("Input type", d->types);
      json("Input Strides", d->strides);
      json("Concrete Inputs", d->values);
      if (event.kind == EventKind::memory) {
        begin_argument("Bytes");  // -1 is a release of one byte
        line_ += std::to_string(d->bytes);
        number("Device Type", d->device_type);
        begin_argument("Device Id");  // -1 is the CPU's
        line_ += std::to_string(d->device);
      } else {
        number("bytes", d->bytes);
        number("device", d->device);
      }
      number("Addr", d->address);
      number("Total Allocated", d->total_allocated);
      number("Total Reserved", d->total_reserved);
      number("stream", d->stream);
      number("flops", d->flops);
      text("Collective name", d->collective);
      text("dtype", d->message_type);
      number("In msg nelems", d->message_elements);
      number("Group size", d->group_size);
      product("grid", d->grid_blocks);
      product("block", d->block_threads);
    }
    number("correlation", event.correlation);
    if (any_argument_) line_ += '}';
  }

  const Trace& trace_;
  OutputText& out_;
  int64_t begin_;
  std::vector<std::string> quoted_;  // by TextId
  std::vector<Json> is_json_;
  std::string line_;
  bool any_ = false, any_argument_ = false;
};

}  // namespace

void write_trace(const Trace& trace, const std::string& path) {
  OutputText out(path);
  TraceWriter(trace, out).run();
  out.close();
}

}  // namespace saturate
