// SPDX-License-Identifier: Apache-2.0
#include "saturate/trace/op_table.hpp"
#include "saturate/trace/read_trace.hpp"
#include "trace_builder.hpp"

#include <catch2/catch_test_macros.hpp>

#include <random>
#include <string>

namespace st = saturate;
using support::TraceBuilder;

namespace {

void shape(TraceBuilder& builder, const char* shapes, const char* types, const char* values = "") {
  st::TraceDetails& details = builder.details();
  details.shapes = builder.text(shapes);
  details.types = builder.text(types);
  details.values = builder.text(values);
}

const char* const three_floats = R"(["float","float","float"])";

st::OpTableRow row_of(const std::vector<st::OpTableRow>& rows, const st::Trace& trace, const std::string& name) {
  st::OpTableRow found;
  int count = 0;
  for (const st::OpTableRow& row : rows) {
    if (trace.text(row.name) != name) continue;
    found = row;
    ++count;
  }
  REQUIRE(count == 1);
  return found;
}

}  // namespace

TEST_CASE("op_table: a product inside of a product counts once") {
  TraceBuilder builder;
  for (const int64_t at : {0, 1000}) {
    builder.op("aten::linear", at, at + 500);
    shape(builder, "[[8,16],[32,16],[32]]", three_floats);
    builder.op("aten::addmm", at + 100, at + 400);
    shape(builder, "[[32],[8,16],[16,32]]", three_floats);
    builder.op("aten::copy_", at + 150, at + 200);  // the bias, spread out
    shape(builder, "[[8,32],[8,32]]", three_floats);
  }
  const st::Trace trace = builder.done();
  const auto rows = st::op_table(st::Timeline(trace));
  REQUIRE(rows.size() == 3);
  const st::OpTableRow addmm = row_of(rows, trace, "aten::addmm"), linear = row_of(rows, trace, "aten::linear");
  CHECK(rows[0].name == addmm.name);  // the most self time
  CHECK(addmm.calls == 2);
  CHECK(addmm.self_ns == 500);
  CHECK(addmm.total_ns == 600);
  CHECK(addmm.flops == 2 * (2 * 8 * 16 * 32));
  CHECK(addmm.bytes == 2 * 4 * (32 + 8 * 16 + 16 * 32 + 8 * 32));
  CHECK(addmm.flops_per_second() == static_cast<double>(addmm.flops) * 1e9 / 600);
  CHECK(linear.flops == 0);
  CHECK(linear.bytes == 0);
  CHECK(linear.total_ns == 1000);
  CHECK(row_of(rows, trace, "aten::copy_").bytes == 0);
}

TEST_CASE("op_table: a formula that lacks its values leaves the count to the operator around") {
  TraceBuilder builder;
  const char* const types = R"(["float","float","float","ScalarList","ScalarList","ScalarList","Scalar"])";
  builder.op("aten::conv2d", 0, 100);
  shape(builder, "[[2,3,8,8],[6,3,3,3],[6]]", types, R"(["","","","[1, 1]","[1, 1]","[1, 1]","1"])");
  builder.op("mine::convolve", 10, 90);
  builder.op("aten::conv2d", 200, 300);  // no values
  shape(builder, "[[2,3,8,8],[6,3,3,3],[6]]", types);
  const st::Trace trace = builder.done();
  const st::OpTableRow row = row_of(st::op_table(st::Timeline(trace)), trace, "aten::conv2d");
  CHECK(row.calls == 2);
  CHECK(row.flops == 2 * 2 * 64 * 6 * 27);
  CHECK(row.unknown == 1);
}

TEST_CASE("op_table: shapes make rows, or do not") {
  TraceBuilder builder;
  builder.op("aten::mm", 0, 10);
  shape(builder, "[[2,3],[3,4]]", three_floats);
  builder.op("aten::mm", 20, 40);
  shape(builder, "[[5,3],[3,4]]", three_floats);
  const st::Trace trace = builder.done();
  const st::Timeline timeline(trace);
  CHECK(st::op_table(timeline).size() == 2);
  const auto rows = st::op_table(timeline, {.by_shape = false});
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].flops == 2 * 3 * 4 * (2 + 5));
  CHECK(st::op_table(timeline, {.begin_ns = 20}).size() == 1);
}

TEST_CASE("op_table: kernels belong to the operator that launched them") {
  TraceBuilder builder;
  builder.op("aten::mean", 0, 100);
  shape(builder, "[[8,16]]", R"(["float"])");
  builder.launch("reduce", 10, 200, 260, 1);
  builder.op("aten::sum", 20, 80);
  shape(builder, "[[8,16]]", R"(["float"])");
  builder.launch("sum", 30, 300, 340, 2);
  builder.launch("alone", 150, 400, 900, 3);
  const st::Trace trace = builder.done();
  const auto rows = st::op_table(st::Timeline(trace));
  REQUIRE(rows.size() == 2);
  CHECK(trace.text(rows[0].name) == "aten::mean");
  CHECK(rows[0].self_device_ns == 60);
  CHECK(rows[0].device_ns == 100);
  CHECK(rows[0].bytes == 4 * 128 + 4);
  CHECK(rows[0].bytes_per_second() == (4 * 128 + 4) * 1e9 / 100);
  CHECK(rows[1].self_device_ns == 40);
  CHECK(rows[1].bytes == 0);
}

TEST_CASE("op_table: random trees, where times and products add up") {
  for (unsigned seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    TraceBuilder builder;
    int64_t products = 0, device = 0;
    int32_t correlation = 0;
    for (int i = 0; i < 40; ++i) {
      const int64_t at = 1000 * i;
      const int depth = static_cast<int>(random() % 5);
      for (int d = 0; d <= depth; ++d) {
        builder.op("aten::mm", at + 10 * d, at + 900 - 10 * d);
        const int64_t size = 1 + static_cast<int64_t>(random() % 3);
        const std::string one = "[" + std::to_string(size) + "," + std::to_string(size) + "]";
        shape(builder, ("[" + one + "," + one + "]").c_str(), three_floats);
        if (d == depth) products += 2 * size * size * size;
        const int64_t length = static_cast<int64_t>(random() % 100);
        builder.launch("gemm", at + 10 * d + 5, at + 100 * d + 200, at + 100 * d + 200 + length, ++correlation);
        device += length;
      }
    }
    const st::Trace trace = builder.done();
    const st::Timeline timeline(trace);
    int64_t flops = 0, own = 0, calls = 0, self = 0, expected_self = 0;
    for (const st::OpTableRow& row : st::op_table(timeline)) {
      flops += row.flops;
      own += row.self_device_ns;
      calls += row.calls;
      self += row.self_ns;
      REQUIRE(row.self_ns <= row.total_ns + row.calls * 900);
    }
    for (std::size_t i = 0; i < trace.events.size(); ++i) {
      if (trace.events[i].kind == st::EventKind::op) expected_self += timeline.nodes()[i].self_ns;
    }
    REQUIRE(flops == products);
    REQUIRE(own == device);
    REQUIRE(calls == correlation);
    REQUIRE(self == expected_self);
    const auto by_name = st::op_table(timeline, {.by_shape = false});
    REQUIRE(by_name.size() == 1);
    REQUIRE(by_name[0].device_ns == device);
    REQUIRE(by_name[0].total_ns == 40 * 900);
  }
}

TEST_CASE("op_table: of a trace that PyTorch wrote") {
  const st::Trace trace = st::read_trace(SATURATE_SOURCE_DIR "/tests/data/traces/mlp.pt.trace.json.gz");
  const auto rows = st::op_table(st::Timeline(trace));
  int64_t flops = 0, unknown = 0;
  for (const st::OpTableRow& row : rows) {
    flops += row.flops;
    unknown += row.unknown;
  }
  CHECK(unknown == 0);
  // Three steps of 8 samples through Linear(16, 32) and Linear(32, 4); no gradient of the input.
  CHECK(flops == 3 * 2 * 8 * (2 * 16 * 32 + 3 * 32 * 4));
}
