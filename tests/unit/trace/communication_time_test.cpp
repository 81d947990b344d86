// SPDX-License-Identifier: Apache-2.0
#include "saturate/trace/communication_time.hpp"
#include "trace_builder.hpp"

#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>

#include <random>
#include <string>

namespace st = saturate;
using Catch::Approx;
using support::TraceBuilder;

namespace {

constexpr const char* all_reduce_kernel = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)";

// Forward and backward on stream 7, launched from a thread of autograd's; an all-reduce on stream 20 at `begin`.
st::Trace step_with_reduction(int64_t begin, int64_t end) {
  TraceBuilder builder;
  builder.step(0, 0, 1000).launch("forward", 5, 100, 300, 1);
  builder.add(st::EventKind::op, builder.cpu(2), "autograd::engine::evaluate_function: MmBackward0", 10, 90);
  builder.add(st::EventKind::runtime, builder.cpu(2), "cudaLaunchKernel", 50, 60);
  builder.correlation(2).kernel("backward", 300, 600).correlation(2);
  builder.collective(all_reduce_kernel, "allreduce", begin, end, 1'000, 4);
  return builder.done();
}

}  // namespace

TEST_CASE("communication: what hides behind computing, and what does not") {
  const st::Trace trace = step_with_reduction(500, 800);
  const st::Timeline timeline(trace);
  const st::CommunicationTime time = st::communication_time(timeline);
  REQUIRE(time.steps.size() == 1);
  CHECK(time.total.communication_ns == 300);
  CHECK(time.total.compute_ns == 500);
  CHECK(time.total.overlapped_ns == 100);
  CHECK(time.total.exposed_ns() == 200);
  CHECK(time.total.after_backward_ns == 0);
  CHECK(time.steps[0].exposed_ns() == 200);
}

TEST_CASE("communication: a reduction that begins after backward is seen as one") {
  const st::Trace trace = step_with_reduction(600, 900);
  const st::CommunicationTime time = st::communication_time(st::Timeline(trace));
  CHECK(time.total.after_backward_ns == 300);
  CHECK(time.total.overlapped_ns == 0);
}

TEST_CASE("communication: bus bandwidth as nccl-tests define it") {
  CHECK(st::bus_factor("allreduce", 4) == Approx(1.5));
  CHECK(st::bus_factor("allgather", 4) == Approx(0.75));
  CHECK(st::bus_factor("reducescatter", 4) == Approx(0.75));
  CHECK(st::bus_factor("alltoall", 8) == Approx(0.875));
  CHECK(st::bus_factor("broadcast", 8) == 1);
  CHECK(st::bus_factor("allreduce", 1) == 1);
  TraceBuilder builder;
  builder.step(0, 0, 10'000);
  builder.collective(all_reduce_kernel, "allreduce", 0, 2'000, 1'000, 4);
  builder.collective("ncclDevKernel_AllGather_RING_LL()", "_allgather_base", 2'000, 3'000, 1'000, 4);
  builder.collective("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL()", "_reduce_scatter_base", 3'000, 3'500, 4'000, 4);
  builder.kernel("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", 4'000, 4'100, 20);  // tells nothing
  builder.collective(all_reduce_kernel, "allreduce", 20'000, 22'000, 1'000, 4);              // behind the steps
  const st::Trace trace = builder.done();
  const st::CommunicationTime time = st::communication_time(st::Timeline(trace));
  REQUIRE(time.collectives.size() == 3);
  CHECK(time.collectives[0].name == "allreduce");
  CHECK(time.collectives[0].count == 2);
  CHECK(time.collectives[0].ns == 2'100);
  CHECK(time.collectives[0].bytes == 4'000);
  CHECK(time.collectives[0].sized_ns == 2'000);
  CHECK(time.collectives[0].bus_bytes_per_second() == Approx(4'000 * 1.5 / 2e-6));
  CHECK(time.collectives[1].name == "allgather");
  CHECK(time.collectives[1].bytes == 16'000);  // what is gathered from four
  CHECK(time.collectives[2].name == "reducescatter");
  CHECK(time.collectives[2].bytes == 16'000);
  CHECK(time.collectives[2].bus_bytes_per_second() == Approx(16'000 * 0.75 / 0.5e-6));
}

TEST_CASE("communication on the CPU: Gloo's ranges beside operators") {
  TraceBuilder builder;
  builder.ranks(0, 2).step(0, 0, 1000);
  builder.op("aten::mm", 0, 200).op("autograd::engine::evaluate_function: MmBackward0", 200, 500);
  builder.op("c10d::allreduce_", 300, 350);  // only starts it: no computing, no second collective
  builder.add(st::EventKind::annotation, builder.cpu(9), "gloo:all_reduce", 320, 700);
  builder.details().shapes = builder.text("[[250,4],[]]");
  builder.details().types = builder.text("[\"float\",\"\"]");
  builder.add(st::EventKind::annotation, builder.cpu(9), "gloo:broadcast", 700, 800);
  const st::Trace trace = builder.done();
  const st::CommunicationTime time = st::communication_time(st::Timeline(trace));
  CHECK(time.total.communication_ns == 480);
  CHECK(time.total.compute_ns == 450);
  CHECK(time.total.overlapped_ns == 150);      // [350, 500)
  CHECK(time.total.after_backward_ns == 100);  // the broadcast
  REQUIRE(time.collectives.size() == 2);
  CHECK(time.collectives[0].name == "allreduce");
  CHECK(time.collectives[0].bytes == 4'000);
  CHECK(time.collectives[0].bus_bytes == Approx(4'000));  // two ranks: the factor is 1
  CHECK(time.collectives[1].bytes == 0);
  CHECK(time.collectives[1].bus_bytes_per_second() == 0);
}

TEST_CASE("communication: operators of c10d where nothing else tells, and none in a trace without") {
  const st::Trace other = TraceBuilder().op("c10d::reduce_scatter_", 0, 50).op("aten::mm", 40, 100).done();
  const st::CommunicationTime time = st::communication_time(st::Timeline(other));
  REQUIRE(time.collectives.size() == 1);
  CHECK(time.collectives[0].name == "reducescatter");
  CHECK(time.total.communication_ns == 50);
  const st::Trace alone = TraceBuilder().op("aten::mm", 0, 100).done();
  const st::CommunicationTime none = st::communication_time(st::Timeline(alone));
  CHECK(none.collectives.empty());
  CHECK(none.total.communication_ns == 0);
  CHECK(none.total.compute_ns == 100);
}

TEST_CASE("communication: overlap of random kernels, counted nanosecond by nanosecond") {
  std::mt19937 random(5);
  for (int round = 0; round < 100; ++round) {
    TraceBuilder builder;
    builder.step(0, 50, 300).step(1, 300, 550);
    bool talk[600] = {}, work[600] = {};
    for (int i = 0; i < 30; ++i) {
      const bool collective = random() % 3 == 0;
      const int64_t begin = static_cast<int64_t>(random() % 540), end = begin + static_cast<int64_t>(random() % 40);
      builder.kernel(collective ? all_reduce_kernel : "gemm", begin, end, collective ? 20 : 7 + i % 2);
      for (int64_t at = begin; at < end; ++at) (collective ? talk : work)[at] = true;
    }
    int64_t expected[3] = {};
    for (int at = 50; at < 550; ++at) {
      expected[0] += talk[at];
      expected[1] += work[at];
      expected[2] += talk[at] && work[at];
    }
    const st::Trace trace = builder.done();
    const st::CommunicationSplit total = st::communication_time(st::Timeline(trace)).total;
    REQUIRE(total.communication_ns == expected[0]);
    REQUIRE(total.compute_ns == expected[1]);
    REQUIRE(total.overlapped_ns == expected[2]);
  }
}
