// SPDX-License-Identifier: Apache-2.0
#include "saturate/trace/read_trace.hpp"
#include "saturate/error.hpp"

#include <zlib.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

namespace st = saturate;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

namespace {

const std::string traces = SATURATE_SOURCE_DIR "/tests/data/traces/";

class TraceFolder {
 public:
  TraceFolder() {
    char name[] = "/tmp/saturate-trace-XXXXXX";
    path_ = ::mkdtemp(name);
  }
  ~TraceFolder() {
    for (const std::string& file : files_) ::unlink(file.c_str());
    ::rmdir(path_.c_str());
  }
  const std::string& path() const { return path_; }
  std::string write(const std::string& name, const std::string& content) {
    const std::string file = path_ + "/" + name;
    std::ofstream(file, std::ios::binary) << content;
    files_.insert(file);
    return file;
  }

 private:
  std::string path_;
  std::set<std::string> files_;
};

std::string unzipped(const std::string& path) {
  std::string text(1 << 24, '\0');
  gzFile file = gzopen(path.c_str(), "rb");
  text.resize(static_cast<std::size_t>(gzread(file, text.data(), static_cast<unsigned>(text.size()))));
  gzclose(file);
  return text;
}

const char* const two_kernels = R"json({
 "schemaVersion": 1, "baseTimeNanoseconds": 5000, "with_flops": 1, "record_shapes": 1,
 "deviceProperties": [{"id": 0, "name": "NVIDIA \"H100\"", "totalGlobalMem": 85000000000, "computeMajor": 9,
                       "computeMinor": 0, "numSms": 132, "more": {"name": "no"}}],
 "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8, "pg_config": [{"name": "no", "rank": 1}]},
 "traceEvents": [
  {"ph": "M", "name": "process_name", "ts": 0, "pid": 100, "tid": 0, "args": {"name": "python"}},
  {"ph": "M", "name": "thread_name", "ts": 0, "pid": 100, "tid": 1, "args": {"name": "main"}},
  {"ph": "X", "cat": "kernel", "name": "gemm<a, {b}>", "pid": 0, "tid": 7, "ts": 20.001, "dur": 3.5,
   "args": {"device": 0, "stream": 7, "correlation": 12, "grid": [16, 4, 1], "block": [128, 1, 1], "External id": 5}},
  {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 100, "tid": 1, "ts": 10.25, "dur": 12,
   "args": {"External id": 5, "Input Dims": [[64, 128], [128, 256], []], "Input type": ["float", "c10::BFloat16", ""],
            "odd": {"a": [1, {"b": null}], "c": "}"}}},
  {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)",
                  "pid" : 0, "tid" : 7, "ts" : "24", "dur" : 1, "args" : {
  "bytes" : 4096, "memory bandwidth (GB/s)" : NaN, "stream" : 7
}
},
  {"ph": "B", "cat": "user_annotation", "name": "outer", "pid": 100, "tid": 1, "ts": 9},
  {"ph": "E", "pid": 100, "tid": 1, "ts": 30.5},
  {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 100, "tid": 1, "ts": 11,
   "args": {"Bytes": -512, "Addr": 140000000000000, "Total Allocated": 1024, "Total Reserved": 2048, "Device Type": 1,
            "Device Id": 0}},
  {"ph": "s", "id": 4, "pid": 100, "tid": 1, "ts": 10.25, "cat": "fwdbwd", "name": "fwdbwd"},
  {"ph": "f", "id": 4, "pid": 100, "tid": 2, "ts": 15, "cat": "fwdbwd", "name": "fwdbwd", "bp": "e"},
  {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch Profiler", "ts": 9, "dur": 1}
 ]
})json";

const st::TraceEvent& named(const st::Trace& trace, const std::string& name) {
  const auto found = std::find_if(trace.events.begin(), trace.events.end(),
                                  [&](const st::TraceEvent& event) { return trace.text(event.name) == name; });
  REQUIRE(found != trace.events.end());
  return *found;
}

}  // namespace

TEST_CASE("read_trace: every field, times to the nanosecond") {
  TraceFolder folder;
  const st::Trace trace = st::read_trace(folder.write("a.json", two_kernels));
  CHECK(trace.origin_ns == 5000 + 9000);
  CHECK(trace.rank == 3);
  CHECK(trace.world_size == 8);
  CHECK(trace.backend == "nccl");
  CHECK(trace.with_flops);
  CHECK_FALSE(trace.with_stack);
  REQUIRE(trace.devices.size() == 1);
  CHECK(trace.devices[0].name == "NVIDIA \"H100\"");
  CHECK(trace.devices[0].multiprocessors == 132);
  CHECK(trace.devices[0].memory_bytes == 85000000000);

  const st::TraceEvent& kernel = named(trace, "gemm<a, {b}>");
  CHECK(kernel.kind == st::EventKind::kernel);
  CHECK(kernel.start_ns == 11001);
  CHECK(kernel.duration_ns == 3500);
  CHECK(kernel.correlation == 12);
  CHECK(trace.details_of(kernel)->grid_blocks == 64);
  CHECK(trace.details_of(kernel)->block_threads == 128);
  CHECK(trace.lanes[kernel.lane].device);
  CHECK(trace.lanes[kernel.lane].tid == 7);

  const st::TraceEvent& mm = named(trace, "aten::mm");
  CHECK(mm.start_ns == 1250);
  CHECK(trace.text(trace.details_of(mm)->shapes) == "[[64,128],[128,256],[]]");
  CHECK(trace.text(trace.details_of(mm)->types) == R"(["float","c10::BFloat16",""])");
  CHECK(trace.details_of(mm)->external_id == 5);
  CHECK(trace.lanes[mm.lane].thread == "main");
  CHECK(trace.lanes[mm.lane].process == "python");

  CHECK(named(trace, "outer").duration_ns == 21500);
  CHECK(trace.details_of(named(trace, "Memcpy HtoD (Pageable -> Device)"))->bytes == 4096);
  const st::TraceEvent& memory = named(trace, "[memory]");
  CHECK(memory.kind == st::EventKind::memory);
  CHECK(trace.details_of(memory)->bytes == -512);
  CHECK(trace.details_of(memory)->total_reserved == 2048);
  REQUIRE(trace.flows.size() == 2);
  CHECK(trace.flows[0].forward_backward);
  CHECK(trace.flows[1].finish);
  CHECK(trace.flows[1].time_ns == 6000);
  CHECK(std::is_sorted(trace.events.begin(), trace.events.end(),
                       [](const auto& a, const auto& b) { return a.start_ns < b.start_ns; }));
}

TEST_CASE("read_trace: a profile of Python's has what Python's json finds in it") {
  const st::Trace trace = st::read_trace(traces + "mlp.pt.trace.json.gz");
  std::ifstream file(traces + "mlp.counts.json");
  const nlohmann::json counts = nlohmann::json::parse(file);
  const auto count = [&](st::EventKind kind) {
    return std::count_if(trace.events.begin(), trace.events.end(),
                         [&](const auto& event) { return event.kind == kind; });
  };
  CHECK(count(st::EventKind::op) == counts["spans"]["cpu_op"].get<int64_t>());
  CHECK(count(st::EventKind::annotation) == counts["spans"]["user_annotation"].get<int64_t>());
  CHECK(count(st::EventKind::python) == counts["spans"]["python_function"].get<int64_t>());
  CHECK(count(st::EventKind::memory) == counts["memory"].get<int64_t>());
  CHECK(static_cast<int64_t>(trace.flows.size()) == counts["flows"].get<int64_t>());
  std::set<std::string> shapes;
  int64_t addmm = 0;
  std::vector<std::string> steps;
  for (const st::TraceEvent& event : trace.events) {
    const std::string& name = trace.text(event.name);
    if (name.starts_with("ProfilerStep")) steps.push_back(name);
    if (name != "aten::addmm") continue;
    ++addmm;
    shapes.insert(trace.text(trace.details_of(event)->shapes));
  }
  CHECK(addmm == counts["addmm"].get<int64_t>());
  CHECK(shapes == counts["addmm_shapes"].get<std::set<std::string>>());
  CHECK(steps == counts["steps"].get<std::vector<std::string>>());
  CHECK((trace.with_stack && trace.record_shapes && trace.profile_memory));
}

TEST_CASE("read_trace: part of the time, no Python frames, no more than asked for") {
  const std::string path = traces + "mlp.pt.trace.json.gz";
  const st::Trace whole = st::read_trace(path);
  const int64_t middle = whole.origin_ns + (whole.begin_ns() + whole.end_ns()) / 2;
  const st::Trace first = st::read_trace(path, {.to_ns = middle});
  const st::Trace second = st::read_trace(path, {.from_ns = middle});
  CHECK(first.events.size() + second.events.size() == whole.events.size());
  CHECK((!first.events.empty() && !second.events.empty()));
  const st::Trace bare = st::read_trace(path, {.keep_python = false, .keep_flows = false});
  CHECK(bare.events.size() < whole.events.size());
  CHECK(bare.flows.empty());
  CHECK_THROWS_MATCHES(st::read_trace(path, {.max_events = 100}), st::DataError,
                       MessageMatches(ContainsSubstring("more than 100 events") && ContainsSubstring("max_events")));
}

TEST_CASE("read_trace: a file that is cut off anywhere is an error, with its name") {
  const std::string path = traces + "mlp.pt.trace.json.gz";
  const std::string text = unzipped(path).substr(0, 30000);
  TraceFolder folder;
  for (std::size_t length = 1; length < text.size(); length += 97) {
    const std::string file = folder.write("cut.json", text.substr(0, length));
    CHECK_THROWS_MATCHES(st::read_trace(file), st::DataError, MessageMatches(ContainsSubstring("cut.json")));
  }
  std::ifstream packed(path, std::ios::binary);
  const std::string zipped((std::istreambuf_iterator<char>(packed)), {});
  for (std::size_t length = 30; length < zipped.size(); length += 997) {
    const std::string file = folder.write("cut.json.gz", zipped.substr(0, length));
    CHECK_THROWS_MATCHES(st::read_trace(file), st::DataError, MessageMatches(ContainsSubstring("cut.json.gz")));
  }
  std::string damaged = zipped;
  for (std::size_t i = 5000; i < 5100; ++i) damaged[i] = static_cast<char>(damaged[i] ^ 0x55);
  CHECK_THROWS_AS(st::read_trace(folder.write("damaged.json.gz", damaged)), st::DataError);
}

TEST_CASE("read_trace: what is no trace says so") {
  TraceFolder folder;
  const auto refused = [&](const std::string& content, const std::string& why) {
    CHECK_THROWS_MATCHES(st::read_trace(folder.write("x.json", content)), st::DataError,
                         MessageMatches(ContainsSubstring("x.json") && ContainsSubstring(why)));
  };
  refused("", "is empty");
  refused("{}", "no trace");
  refused(R"({"traceEvent": []})", "no trace");
  refused("[1, 2, 3]", "no trace");
  refused("hello", "is no valid JSON at byte 0");
  refused(R"({"traceEvents": [{"ph": "X" "ts": 1}]})", "is no valid JSON at byte");
  CHECK_THROWS_MATCHES(st::read_trace("/nowhere/x.json"), st::DataError, MessageMatches(ContainsSubstring("/nowhere")));
  CHECK_THROWS_MATCHES(st::read_trace(folder.path()), st::DataError, MessageMatches(ContainsSubstring("is a folder")));
  CHECK(st::read_trace(folder.write("none.json", R"({"traceEvents": []})")).events.empty());
  CHECK(
      st::read_trace(folder.write("bare.json", R"([{"ph": "X", "name": "a", "ts": 1, "dur": 2, "pid": 1, "tid": 1}])"))
          .events.size() == 1);
}

TEST_CASE("read_trace: a part of the time, when the file tells last what its times count from") {
  TraceFolder folder;
  const std::string events = R"("traceEvents": [
    {"ph": "X", "name": "a", "ts": 1, "dur": 1, "pid": 1, "tid": 1},
    {"ph": "s", "id": 1, "ts": 1, "pid": 1, "tid": 1, "cat": "ac2g", "name": "ac2g"},
    {"ph": "X", "name": "b", "ts": 5, "dur": 1, "pid": 1, "tid": 1},
    {"ph": "f", "id": 1, "ts": 5, "pid": 1, "tid": 1, "cat": "ac2g", "name": "ac2g"}])";
  const std::string base = R"("baseTimeNanoseconds": 1000000)";
  const std::string first = folder.write("first.json", "{" + base + "," + events + "}");
  const std::string last = folder.write("last.json", "{" + events + "," + base + "}");
  for (const std::string& path : {first, last}) {
    const st::Trace trace = st::read_trace(path, {.from_ns = 1'004'000});
    REQUIRE(trace.events.size() == 1);
    CHECK(trace.text(trace.events[0].name) == "b");
    CHECK(trace.origin_ns == 1'005'000);
    REQUIRE(trace.flows.size() == 1);  // of the same part
    CHECK(trace.flows[0].finish);
    CHECK(st::read_trace(path, {.to_ns = 1'004'000}).events.size() == 1);
    CHECK(st::read_trace(path).events.size() == 2);
  }
}

TEST_CASE("read_trace: the end of a range that is left out ends no other") {
  TraceFolder folder;
  const std::string path = folder.write("a.json", R"([
    {"ph": "B", "name": "outer", "ts": 1, "pid": 1, "tid": 1},
    {"ph": "B", "name": "inner", "cat": "python_function", "ts": 3, "pid": 1, "tid": 1},
    {"ph": "E", "ts": 4, "pid": 1, "tid": 1}, {"ph": "E", "ts": 9, "pid": 1, "tid": 1}])");
  for (const st::ReadTraceOptions& options :
       {st::ReadTraceOptions{.to_ns = 2000}, st::ReadTraceOptions{.keep_python = false}}) {
    const st::Trace trace = st::read_trace(path, options);
    REQUIRE(trace.events.size() == 1);
    CHECK(trace.events[0].duration_ns == 8000);
  }
}

TEST_CASE("read_trace: a time that is none is an error, not the year 1970") {
  TraceFolder folder;
  const auto with = [&](const std::string& times) {
    return folder.write("t.json", R"([{"ph": "X", "name": "a", "pid": 1, "tid": 1)" + times + "}]");
  };
  for (const char* times : {"", R"(, "ts": NaN)", R"(, "ts": "soon")", R"(, "ts": "")", R"(, "ts": 1e300)",
                            R"(, "ts": 45000000000000000)", R"(, "ts": 99999999999999999999)"}) {
    CHECK_THROWS_MATCHES(st::read_trace(with(times)), st::DataError,
                         MessageMatches(ContainsSubstring("t.json at byte") && ContainsSubstring("\"ts\"")));
  }
  CHECK_THROWS_MATCHES(st::read_trace(with(R"(, "ts": 1, "dur": 1e18)")), st::DataError,
                       MessageMatches(ContainsSubstring("\"dur\" is 1e18")));
  CHECK(st::read_trace(with(R"(, "ts": 1790857026123456.789)")).origin_ns == 1'790'857'026'123'456'789);
  CHECK(st::read_trace(with(R"(, "ts": -2.5e0)")).origin_ns == -2500);
}

TEST_CASE("read_trace: texts of arguments stay JSON; numbers that do not fit are unknown") {
  TraceFolder folder;
  const st::Trace trace =
      st::read_trace(folder.write("a.json", R"([{"ph": "X", "name": "a", "ts": 1, "dur": 1, "pid": 1,
    "tid": 1, "args": {"Concrete Inputs": ["a\"b\\c\n\t\u001f"], "correlation": 4294967297,
    "grid": [4294967296, 4294967296, 4294967296]}}])"));
  const std::string values = trace.text(trace.details_of(trace.events[0])->values);
  CHECK(nlohmann::json::parse(values)[0] == "a\"b\\c\n\t\u001f");
  CHECK(trace.events[0].correlation == -1);
  CHECK(trace.details_of(trace.events[0])->grid_blocks == -1);
}

TEST_CASE("read_trace: device properties of another form are left alone") {
  TraceFolder folder;
  const std::string path = folder.write("a.json", R"({"deviceProperties": [[{"id": 1}, 5]], "traceEvents": []})");
  CHECK(st::read_trace(path).devices.empty());
}

TEST_CASE("read_traces: one a rank, in their order") {
  TraceFolder folder;
  const auto of_rank = [](int rank) {
    return R"({"distributedInfo": {"rank": )" + std::to_string(rank) + R"(}, "traceEvents": []})";
  };
  folder.write("a.json", of_rank(1));
  folder.write("b.json", of_rank(0));
  folder.write("notes.txt", "no trace");
  const auto both = st::read_traces(folder.path());
  REQUIRE(both.size() == 2);
  CHECK(both[0].rank == 0);
  CHECK(both[1].rank == 1);
  folder.write("c.json", of_rank(1));
  CHECK_THROWS_MATCHES(st::read_traces(folder.path()), st::DataError,
                       MessageMatches(ContainsSubstring("are both of rank 1")));
  TraceFolder empty;
  CHECK_THROWS_MATCHES(st::read_traces(empty.path()), st::DataError, MessageMatches(ContainsSubstring("has no trace")));
}
