// SPDX-License-Identifier: Apache-2.0
#include "saturate/trace/conversions.hpp"
#include "saturate/trace/read_trace.hpp"
#include "trace_builder.hpp"

#include <catch2/catch_test_macros.hpp>

#include <random>
#include <string>

namespace st = saturate;
using st::ConversionKind;
using support::TraceBuilder;

namespace {

const char* const floats = R"(["float","float","Scalar"])";
const char* const to_bf16 = R"(["c10::BFloat16","float","Scalar"])";
const char* const to_float = R"(["float","c10::BFloat16","Scalar"])";
const char* const image = "[[2,3,4,5],[2,3,4,5],[]]";
const char* const to_nhwc = "[[60,1,15,3],[60,20,5,1],[]]";
const char* const to_nchw = "[[60,20,5,1],[60,1,15,3],[]]";
constexpr int64_t image_elements = 2 * 3 * 4 * 5;

void copy(TraceBuilder& builder, int64_t begin, int64_t end, const char* shapes, const char* types,
          const char* strides) {
  builder.op("aten::copy_", begin, end);
  st::TraceDetails& details = builder.details();
  details.shapes = builder.text(shapes);
  details.types = builder.text(types);
  details.strides = builder.text(strides);
}

st::Conversions found_in(TraceBuilder& builder) {
  const st::Trace trace = builder.done();
  const st::Timeline timeline(trace);
  return st::conversions(timeline);
}

}  // namespace

TEST_CASE("conversions: layouts there and back in one pass") {
  TraceBuilder builder;
  builder.step(0, 0, 1000);
  builder.op("my::block", 5, 190).op("aten::contiguous", 10, 100).op("aten::clone", 20, 90);
  copy(builder, 30, 80, image, floats, to_nhwc);
  copy(builder, 110, 130, image, floats, to_nchw);
  copy(builder, 200, 210, image, floats, to_nhwc);
  const st::Conversions found = found_in(builder);
  CHECK(found.shapes_known);
  CHECK(found.steps_ns == 1000);
  const st::ConversionSum& sum = found.of(ConversionKind::layout);
  CHECK(sum.count == 3);
  CHECK(sum.ns == 50 + 20 + 10);
  CHECK(sum.bytes == 3 * 2 * 4 * image_elements);
  CHECK(sum.back == 1);
  REQUIRE(found.rows.size() == 3);
  CHECK(found.rows[0].from == "NCHW");
  CHECK(found.rows[0].to == "NHWC");
  CHECK(found.rows[0].caller == "my::block");
  CHECK(found.rows[1].from == "NHWC");
  CHECK(found.rows[2].caller.empty());
}

TEST_CASE("conversions: what autograd converts back, and what another step does, is no ping-pong") {
  TraceBuilder builder;
  builder.step(0, 0, 1000).step(1, 1000, 2000);
  copy(builder, 10, 20, image, floats, to_nhwc);
  builder.op("autograd::engine::evaluate_function: CloneBackward0", 100, 300);
  copy(builder, 110, 120, image, floats, to_nchw);
  copy(builder, 1010, 1020, image, floats, to_nchw);
  copy(builder, 2010, 2020, image, floats, to_nchw);  // in no step
  const st::Conversions found = found_in(builder);
  CHECK(found.of(ConversionKind::layout).count == 3);
  CHECK(found.of(ConversionKind::layout).back == 0);
}

TEST_CASE("conversions: types, with their share and bytes") {
  TraceBuilder builder;
  builder.step(0, 0, 1000);
  copy(builder, 0, 120, "[[64,32],[64,32],[]]", to_bf16, "[[32,1],[32,1],[]]");
  copy(builder, 120, 170, "[[64,32],[64,32],[]]", to_float, "[[32,1],[32,1],[]]");
  copy(builder, 200, 250, "[[64,16],[64,16],[]]", to_float, "[[16,1],[16,1],[]]");
  const st::Conversions found = found_in(builder);
  const st::ConversionSum& sum = found.of(ConversionKind::type);
  CHECK(sum.count == 3);
  CHECK(sum.bytes == (4 + 2) * (2 * 64 * 32 + 64 * 16));
  CHECK(sum.back == 1);
  CHECK(found.rows[0].ns == 120);
  CHECK(found.rows[0].from == "float");
  CHECK(found.rows[0].to == "c10::BFloat16");
}

TEST_CASE("conversions: which copies are none") {
  TraceBuilder builder;
  builder.step(0, 0, 1000);
  copy(builder, 0, 10, image, floats, "[[60,20,5,1],[60,20,5,1],[]]");                       // the same layout
  copy(builder, 10, 20, "[[2,1,4,5],[2,1,4,5],[]]", floats, "[[20,20,5,1],[20,1,5,1],[]]");  // one channel
  copy(builder, 20, 30, "[[8,4],[4],[]]", floats, "[[4,1],[1],[]]");                         // a bias, spread out
  copy(builder, 30, 40, "[[8,4],[8,4],[]]", floats, "[[4,1],[0,1],[]]");                     // expanded
  copy(builder, 40, 50, "[[8],[8],[]]", floats, "[[1],[2],[]]");
  const st::Conversions none = found_in(builder);
  CHECK(none.rows.empty());
  TraceBuilder transposed;
  transposed.step(0, 0, 1000);
  copy(transposed, 0, 10, "[[8,4],[8,4],[]]", floats, "[[4,1],[1,8],[]]");
  const st::Conversions found = found_in(transposed);
  CHECK(found.of(ConversionKind::gather).count == 1);
  CHECK(found.of(ConversionKind::gather).back == 0);
  CHECK(found.rows[0].from == "strided");
  CHECK(found.rows[0].to == "contiguous");
}

TEST_CASE("conversions: by the names of kernels and of oneDNN's operators") {
  TraceBuilder builder;
  builder.step(0, 0, 1000).op("aten::cudnn_convolution", 0, 100);
  builder.launch("void cudnn::ops::nchwToNhwcKernel<float, float>(...)", 10, 200, 230, 1);
  builder.launch("sm80_xmma_fprop_implicit_gemm_nhwc", 20, 230, 300, 2);
  builder.launch("void cudnn::ops::nhwcToNchwKernel<float, float>(...)", 30, 300, 350, 3);
  builder.op("aten::to_mkldnn", 400, 450).op("mkldnn::_reorder", 410, 420);
  builder.op("aten::mkldnn_reorder_conv2d_weight", 500, 600);
  const st::Conversions found = found_in(builder);
  CHECK_FALSE(found.shapes_known);
  CHECK(found.of(ConversionKind::layout).count == 2);
  CHECK(found.of(ConversionKind::layout).ns == 80);
  CHECK(found.of(ConversionKind::layout).back == 1);
  CHECK(found.of(ConversionKind::reorder).count == 2);
  CHECK(found.of(ConversionKind::reorder).ns == 150);
  CHECK(found.rows[1].caller == "aten::cudnn_convolution");
}

TEST_CASE("conversions: a copy on the device takes the device's time, and counts once") {
  TraceBuilder builder;
  builder.step(0, 0, 1000);
  copy(builder, 0, 20, image, floats, to_nhwc);
  builder.launch("void nchwToNhwcKernel(...)", 5, 100, 400, 1);
  const st::Conversions found = found_in(builder);
  CHECK(found.of(ConversionKind::layout).count == 1);
  CHECK(found.of(ConversionKind::layout).ns == 300);
}

TEST_CASE("conversions: rows add up to the sums in any trace") {
  for (unsigned seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    TraceBuilder builder;
    builder.step(0, 0, 5000).step(1, 5000, 10000);
    int64_t images = 0, types = 0;
    for (int i = 0; i < 100; ++i) {
      const int64_t at = 100 * i, end = at + static_cast<int64_t>(random() % 50);
      const bool type = random() % 2 == 0, forth = random() % 2 == 0;
      const char* const strides = forth ? to_nhwc : to_nchw;
      copy(builder, at, end, image, type ? (forth ? to_bf16 : to_float) : floats, strides);
      (type ? types : images) += 1;
    }
    const st::Conversions found = found_in(builder);
    REQUIRE(found.of(ConversionKind::layout).count == images);
    REQUIRE(found.of(ConversionKind::type).count == types);
    int64_t ns = 0, bytes = 0;
    for (const st::Conversion& row : found.rows) {
      ns += row.ns;
      bytes += row.bytes;
    }
    for (const st::ConversionSum& sum : found.sums) {
      ns -= sum.ns;
      bytes -= sum.bytes;
      REQUIRE(2 * sum.back <= sum.count);
    }
    REQUIRE(ns == 0);
    REQUIRE(bytes == 0);
  }
}

TEST_CASE("conversions: of a trace that PyTorch wrote") {
  const st::Trace trace = st::read_trace(SATURATE_SOURCE_DIR "/tests/data/traces/mlp.pt.trace.json.gz");
  const st::Conversions found = st::conversions(st::Timeline(trace));
  CHECK(found.of(ConversionKind::layout).count == 0);
  CHECK(found.of(ConversionKind::type).count == 0);
  CHECK(found.steps_ns > 0);
}
