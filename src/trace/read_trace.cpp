// SPDX-License-Identifier: Apache-2.0
#include "saturate/trace/read_trace.hpp"

#include "input_file.hpp"
#include "saturate/error.hpp"
#include "trace_handler.hpp"

#include <rapidjson/error/en.h>
#include <rapidjson/reader.h>

#include <dirent.h>

#include <algorithm>
#include <utility>

namespace saturate {
namespace {

// What RapidJSON reads from.
class JsonStream {
 public:
  using Ch = char;

  explicit JsonStream(trace::InputFile& file) : file_(file) { fill(); }

  Ch Peek() const { return at_ == end_ ? '\0' : *at_; }
  Ch Take() {
    const Ch taken = Peek();
    if (at_ != end_ && ++at_ == end_) fill();
    return taken;
  }
  bool ended() const { return at_ == end_; }
  std::size_t Tell() const { return before_ + static_cast<std::size_t>(at_ - begin_); }

  // Only of streams that are written to.
  Ch* PutBegin() { return nullptr; }
  void Put(Ch) {}
  void Flush() {}
  std::size_t PutEnd(Ch*) { return 0; }

 private:
  void fill() {
    before_ += static_cast<std::size_t>(end_ - begin_);
    const auto piece = file_.next();
    begin_ = at_ = piece.data();
    end_ = begin_ + piece.size();
  }

  trace::InputFile& file_;
  const char *begin_ = nullptr, *at_ = nullptr, *end_ = nullptr;
  std::size_t before_ = 0;
};

std::string place(std::size_t byte) { return " at byte " + std::to_string(byte); }

[[noreturn]] void fail_parse(const std::string& path, const rapidjson::ParseResult& result, bool at_end) {
  throw DataError(path + (at_end ? " is cut off" : " is no valid JSON") + place(result.Offset()) + ": " +
                  rapidjson::GetParseError_En(result.Code()) +
                  (at_end ? " Was the profiler still writing, or the disk full?" : ""));
}

bool is_trace_file(const std::string& name) { return name.ends_with(".json") || name.ends_with(".json.gz"); }

trace::TraceHandler parse_trace(const std::string& path, const ReadTraceOptions& options, int64_t base_ns) {
  trace::InputFile file(path);
  JsonStream stream(file);
  if (stream.Peek() == '\0' && stream.Tell() == 0) throw DataError(path + " is empty");
  trace::TraceHandler handler(path, options, base_ns);
  rapidjson::Reader reader;
  constexpr unsigned flags =
      rapidjson::kParseNumbersAsStringsFlag | rapidjson::kParseNanAndInfFlag | rapidjson::kParseIterativeFlag;
  const rapidjson::ParseResult result = reader.Parse<flags>(stream, handler);
  if (result.IsError()) {
    if (!handler.problem().empty()) throw DataError(path + place(result.Offset()) + ": " + handler.problem());
    fail_parse(path, result, stream.ended());
  }
  return handler;
}

}  // namespace

Trace read_trace(const std::string& path, const ReadTraceOptions& options) {
  trace::TraceHandler handler = parse_trace(path, options, 0);
  // Some versions of the profiler write it behind the events: a second time over the file, rather than all of it kept.
  if (handler.judged_too_early()) handler = parse_trace(path, options, handler.base_ns());
  return handler.finish();
}

std::vector<Trace> read_traces(const std::string& folder, const ReadTraceOptions& options) {
  DIR* const directory = ::opendir(folder.c_str());
  if (directory == nullptr) throw DataError(folder + " cannot be opened as a folder");
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(directory)) {
    if (is_trace_file(entry->d_name)) names.emplace_back(entry->d_name);
  }
  ::closedir(directory);
  if (names.empty()) throw DataError(folder + " has no trace (*.json, *.json.gz)");
  std::sort(names.begin(), names.end());
  std::vector<Trace> traces;
  for (const std::string& name : names) traces.push_back(read_trace(folder + "/" + name, options));
  std::stable_sort(traces.begin(), traces.end(), [](const Trace& a, const Trace& b) {
    return static_cast<unsigned>(a.rank) < static_cast<unsigned>(b.rank);  // -1 last
  });
  for (std::size_t i = 1; i < traces.size(); ++i) {
    if (traces[i].rank < 0 || traces[i].rank != traces[i - 1].rank) continue;
    throw DataError(traces[i - 1].name + " and " + traces[i].name + " are both of rank " +
                    std::to_string(traces[i].rank) + ": give a folder of one run");
  }
  return traces;
}

}  // namespace saturate
