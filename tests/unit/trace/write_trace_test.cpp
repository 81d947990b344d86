// SPDX-License-Identifier: Apache-2.0
#include "saturate/trace/write_trace.hpp"

#include "saturate/error.hpp"
#include "saturate/trace/read_trace.hpp"
#include "trace_builder.hpp"

#include <catch2/catch_test_macros.hpp>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace st = saturate;
using support::TraceBuilder;

namespace {

const std::string recorded = SATURATE_SOURCE_DIR "/tests/data/traces/mlp.pt.trace.json.gz";

std::string in_folder(const std::string& name) {
  const auto folder = std::filesystem::temp_directory_path() / "saturate_write_trace";
  std::filesystem::create_directories(folder);
  return (folder / name).string();
}

std::string describe(const st::Trace& trace, const st::TraceEvent& event) {
  std::ostringstream out;
  const st::TraceLane& lane = trace.lanes[event.lane];
  out << trace.text(event.name) << ' ' << static_cast<int>(event.kind) << ' ' << event.start_ns << ' '
      << event.duration_ns << ' ' << event.correlation << ' ' << lane.pid << '/' << lane.tid << ' ' << lane.device
      << ' ' << lane.process << '/' << lane.thread;
  st::TraceDetails none;
  const st::TraceDetails& d = trace.details_of(event) ? *trace.details_of(event) : none;
  for (const st::TextId text : {d.shapes, d.types, d.strides, d.values, d.collective, d.message_type}) {
    out << " |" << trace.text(text);
  }
  for (const int64_t number : {d.external_id, d.sequence, d.forward_thread, d.bytes, d.address, d.total_allocated,
                               d.total_reserved, int64_t{d.device_type}, int64_t{d.device}, d.stream, d.flops,
                               d.message_elements, d.group_size, int64_t{d.grid_blocks}, int64_t{d.block_threads}}) {
    out << ' ' << number;
  }
  return out.str();
}

std::multiset<std::string> described(const st::Trace& trace) {
  std::multiset<std::string> result;
  for (const st::TraceEvent& event : trace.events) result.insert(describe(trace, event));
  for (const st::TraceFlow& flow : trace.flows) {
    std::ostringstream out;
    out << "flow " << flow.id << ' ' << flow.time_ns << ' ' << trace.lanes[flow.lane].tid << ' '
        << flow.forward_backward << flow.finish;
    result.insert(out.str());
  }
  return result;
}

void check_same(const st::Trace& a, const st::Trace& b) {
  CHECK(described(a) == described(b));
  CHECK(a.origin_ns + a.begin_ns() == b.origin_ns + b.begin_ns());
  CHECK(a.host == b.host);
  CHECK(a.rank == b.rank);
  CHECK(a.world_size == b.world_size);
  CHECK(a.record_shapes == b.record_shapes);
  CHECK(a.with_flops == b.with_flops);
  CHECK(a.devices.size() == b.devices.size());
}

// One of everything that the writer knows.
st::Trace with_everything() {
  TraceBuilder builder;
  builder.step(3, 1000, 901000).op("aten::addmm \"quoted\"\\ \n", 2001, 5003);
  st::TraceDetails& op = builder.details();
  op.shapes = builder.text("[[8],[[2,3],[4]],[]]");
  op.types = builder.text(R"(["float","TensorList",""])");
  op.values = builder.text(R"(["","","[1, 2]"])");
  op.sequence = 0;
  op.forward_thread = 0;
  op.flops = int64_t{1} << 53;
  builder.launch("kernel", 6000, 6100, 7777, 12).copy("Memcpy HtoD (Pageable -> Device)", 8000, 9000, 4096);
  builder.details().grid_blocks = 64;
  builder.details().block_threads = 256;
  builder.details().stream = 7;
  builder.collective("ncclKernel", "allreduce", 10000, 20000, 1 << 20, 8).ranks(1, 8);
  builder.add(st::EventKind::memory, builder.cpu(), "[memory]", 500, 500);
  builder.details().bytes = -1;  // a release of one byte
  builder.details().device_type = 0;
  builder.details().address = (int64_t{1} << 47) + 3;
  builder.add(st::EventKind::sync, builder.stream(), "Stream Sync", 30000, 30001);
  builder.add(st::EventKind::overhead, builder.cpu(), "Buffer Flush", 40000, 40001);
  st::Trace trace = builder.done();
  trace.origin_ns = 1'790'857'026'123'456'789;
  trace.backend = "nccl";
  trace.host = "here";
  trace.devices.push_back({.id = 0, .name = "NVIDIA H100", .memory_bytes = 80'000'000'000, .multiprocessors = 132});
  trace.flows.push_back({.id = 5, .time_ns = 2001, .lane = 0, .forward_backward = true});
  trace.flows.push_back({.id = 5, .time_ns = 2500, .lane = 0, .forward_backward = true, .finish = true});
  return trace;
}

}  // namespace

TEST_CASE("write_trace: what read_trace reads again is the same, plain and gzip") {
  const auto roundtrip = [](const st::Trace& trace, const char* name) {
    const std::string path = in_folder(name);
    st::write_trace(trace, path);
    return st::read_trace(path);
  };
  SECTION("a trace of PyTorch's") {
    const st::Trace trace = st::read_trace(recorded);
    REQUIRE(trace.events.size() > 100);
    check_same(trace, roundtrip(trace, "mlp.json"));
    check_same(trace, roundtrip(trace, "mlp.json.gz"));
    CHECK(std::filesystem::file_size(in_folder("mlp.json.gz")) * 4 < std::filesystem::file_size(in_folder("mlp.json")));
  }
  SECTION("one of everything") {
    const st::Trace trace = with_everything();
    st::Trace moved = with_everything();  // as the reader has it: times count from the first event
    const int64_t begin = moved.begin_ns();
    for (st::TraceEvent& event : moved.events) event.start_ns -= begin;
    for (st::TraceFlow& flow : moved.flows) flow.time_ns -= begin;
    moved.origin_ns += begin;
    check_same(moved, roundtrip(trace, "all.json"));
  }
}

TEST_CASE("write_trace: the file is Chrome's trace format, as Perfetto asks for it") {
  st::write_trace(with_everything(), in_folder("chrome.json"));
  const auto json = nlohmann::json::parse(std::ifstream(in_folder("chrome.json")));
  CHECK(json["baseTimeNanoseconds"] == 1'790'857'026'123'456'789 + 500);
  CHECK(json["distributedInfo"]["backend"] == "nccl");
  std::map<std::string, int> phases;
  for (const auto& event : json["traceEvents"]) {
    const std::string phase = event.at("ph");
    CHECK((event.at("pid").is_number_integer() && event.at("tid").is_number_integer()));
    CHECK(event.at("name").is_string());
    CHECK(event.at("ts").is_number());
    if (phase == "X") CHECK(event.at("dur").get<double>() >= 0);
    if (phase == "i") CHECK(event.at("s") == "t");
    if (phase == "s" || phase == "f") CHECK(event.at("id").is_number_integer());
    if (phase == "f") CHECK(event.at("bp") == "e");
    ++phases[phase];
  }
  CHECK(phases == std::map<std::string, int>{{"X", 8}, {"i", 1}, {"s", 1}, {"f", 1}});  // the lanes have no names
}

TEST_CASE("write_trace: a text that is no JSON does not break the file; what cannot be written is named") {
  TraceBuilder builder;
  builder.op("op", 0, 10);
  builder.details().shapes = builder.text("[[8,");
  const st::Trace trace = builder.done();
  st::write_trace(trace, in_folder("odd.json"));
  const st::Trace again = st::read_trace(in_folder("odd.json"));
  CHECK(again.text(again.details_of(again.events[0])->shapes) == "[[8,");

  const std::string nowhere = in_folder("no_such_folder/trace.json");
  try {
    st::write_trace(trace, nowhere);
    FAIL("a folder that is not there");
  } catch (const st::Error& error) {
    CHECK(std::string(error.what()).find(nowhere) != std::string::npos);
  }
  std::filesystem::create_directories(in_folder("folder.json"));
  CHECK_THROWS_AS(st::write_trace(trace, in_folder("folder.json")), st::Error);
  for (const auto& entry : std::filesystem::directory_iterator(in_folder(""))) {
    CHECK(entry.path().string().find(".part") == std::string::npos);
  }
}
