// SPDX-License-Identifier: Apache-2.0
#include "saturate/trace/critical_path.hpp"
#include "saturate/trace/read_trace.hpp"
#include "trace_builder.hpp"

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <random>
#include <string>

namespace st = saturate;
using st::PathKind;
using support::TraceBuilder;

namespace {

// Each part as "kind name begin-end".
std::vector<std::string> parts_of(const st::CriticalPath& path, const st::Trace& trace) {
  std::vector<std::string> parts;
  for (const st::PathSegment& part : path.segments) {
    const std::string name = part.event == st::Timeline::none ? "-" : trace.text(trace.events[part.event].name);
    parts.push_back(std::string(st::to_string(part.kind)) + " " + name + " " + std::to_string(part.begin_ns) + "-" +
                    std::to_string(part.end_ns));
  }
  return parts;
}

void check_whole(const st::CriticalPath& path) {
  int64_t at = path.step.begin_ns, sum = 0;
  for (const st::PathSegment& part : path.segments) {
    REQUIRE(part.begin_ns == at);
    REQUIRE(part.end_ns > at);
    at = part.end_ns;
  }
  REQUIRE(at == path.step.end_ns);
  for (const int64_t ns : path.ns) sum += ns;
  REQUIRE(sum == path.step.end_ns - path.step.begin_ns);
}

std::vector<std::string> only_path(const st::Trace& trace, const st::CriticalPathOptions& options = {}) {
  const auto paths = st::critical_paths(st::Timeline(trace), options);
  REQUIRE(paths.size() == 1);
  check_whole(paths[0]);
  return parts_of(paths[0], trace);
}

using Parts = std::vector<std::string>;

}  // namespace

TEST_CASE("critical_path: the host's time is its own until it waits for the device") {
  TraceBuilder builder;
  builder.step(0, 0, 1000).op("aten::mm", 100, 200).launch("gemm", 150, 170, 700, 1);
  builder.launch("small", 300, 700, 720, 2);
  builder.runtime("cudaDeviceSynchronize", 400, 730);
  const st::Trace trace = builder.done();
  CHECK(only_path(trace) == Parts{"host ProfilerStep#0 0-100", "host aten::mm 100-150", "launch gemm 150-170",
                                  "device gemm 170-700", "device small 700-720", "sync cudaDeviceSynchronize 720-730",
                                  "host ProfilerStep#0 730-1000"});
}

TEST_CASE("critical_path: the longest kernel is not on it when nothing waits for it") {
  TraceBuilder builder;
  builder.step(0, 0, 1000).launch("long", 10, 20, 5000, 1, 7).launch("short", 100, 110, 160, 2, 8);
  builder.runtime("cudaStreamSynchronize", 200, 210);  // has ended already
  builder.runtime("cudaStreamSynchronize", 300, 305);
  const st::Trace trace = builder.done();
  for (const std::string& part : only_path(trace)) {
    CHECK(part.find("long") == std::string::npos);
    CHECK(part.find("short") == std::string::npos);
  }
}

TEST_CASE("critical_path: launch-bound work leads back to the host at each launch") {
  TraceBuilder builder;
  builder.step(0, 0, 400);
  builder.op("aten::add", 0, 50).launch("a", 20, 30, 35, 1);
  builder.op("aten::mul", 100, 150).launch("b", 120, 130, 135, 2);
  builder.runtime("cudaStreamSynchronize", 128, 140);
  const st::Trace trace = builder.done();
  CHECK(only_path(trace) == Parts{"host aten::add 0-20", "launch cudaLaunchKernel 20-24", "host aten::add 24-50",
                                  "host ProfilerStep#0 50-100", "host aten::mul 100-120", "launch b 120-130",
                                  "device b 130-135", "sync cudaStreamSynchronize 135-140", "host aten::mul 140-150",
                                  "host ProfilerStep#0 150-400"});
}

TEST_CASE("critical_path: a copy that blocks its caller, and one that does not") {
  TraceBuilder builder;
  builder.step(0, 0, 300);
  builder.runtime("cudaMemcpyAsync", 10, 100).correlation(1).copy("Memcpy DtoH (Device -> Pageable)", 20, 90, 64);
  builder.correlation(1);
  builder.runtime("cudaMemcpyAsync", 110, 120).correlation(2).copy("Memcpy HtoD (Pinned -> Device)", 115, 250, 64);
  builder.correlation(2);
  const st::Trace trace = builder.done();
  CHECK(only_path(trace) == Parts{"host ProfilerStep#0 0-10", "launch Memcpy DtoH (Device -> Pageable) 10-20",
                                  "copy Memcpy DtoH (Device -> Pageable) 20-90", "sync cudaMemcpyAsync 90-100",
                                  "host ProfilerStep#0 100-110", "launch cudaMemcpyAsync 110-120",
                                  "host ProfilerStep#0 120-300"});
}

TEST_CASE("critical_path: a stream that waits for another, communication among it") {
  TraceBuilder builder;
  builder.step(0, 0, 200'000).launch("backward", 10, 20, 60'000, 1);
  builder.runtime("cudaLaunchKernel", 100, 110).correlation(2);
  builder.collective("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "allreduce", 60'005, 90'000, 1000, 4);
  builder.correlation(2);
  builder.launch("optimizer", 200, 90'010, 95'000, 3);
  builder.runtime("cudaStreamSynchronize", 300, 95'020);
  const st::Trace trace = builder.done();
  CHECK(only_path(trace) == Parts{"host ProfilerStep#0 0-10", "launch backward 10-20", "device backward 20-60000",
                                  "sync ncclDevKernel_AllReduce_Sum_f32_RING_LL 60000-60005",
                                  "communication ncclDevKernel_AllReduce_Sum_f32_RING_LL 60005-90000",
                                  "sync optimizer 90000-90010", "device optimizer 90010-95000",
                                  "sync cudaStreamSynchronize 95000-95020", "host ProfilerStep#0 95020-200000"});
  // A latency that explains the gap: the launch, or the work before on the same stream.
  const Parts patient = only_path(trace, {.launch_latency_ns = 100'000});
  CHECK(patient[3] == "launch optimizer 60000-90010");
}

TEST_CASE("critical_path: a wait for one stream does not follow another's work") {
  TraceBuilder builder;
  builder.step(0, 0, 1000).launch("mine", 10, 20, 300, 1, 7).launch("other", 30, 40, 390, 2, 8);
  builder.runtime("cudaStreamSynchronize", 100, 400);
  builder.details().stream = 7;
  const st::Trace trace = builder.done();
  const auto paths = st::critical_paths(st::Timeline(trace));
  CHECK(paths[0].of(PathKind::device) == 280);
  CHECK(paths[0].of(PathKind::sync) == 100);
}

TEST_CASE("critical_path: backward on autograd's thread") {
  TraceBuilder builder;
  builder.step(0, 0, 1000).op("forward", 10, 200).annotation("backward", 210, 800).op("update", 810, 950);
  const uint32_t autograd = builder.cpu(2), loader = builder.cpu(3);
  builder.add(st::EventKind::op, autograd, "autograd::engine::evaluate_function: A", 230, 400);
  builder.add(st::EventKind::op, autograd, "aten::mm", 250, 390);
  builder.add(st::EventKind::op, autograd, "autograd::engine::evaluate_function: B", 410, 780);
  builder.add(st::EventKind::op, loader, "aten::stack", 100, 790);  // nobody waits for it
  const st::Trace trace = builder.done();
  CHECK(only_path(trace) == Parts{"host ProfilerStep#0 0-10", "host forward 10-200", "host ProfilerStep#0 200-210",
                                  "host backward 210-230", "host autograd::engine::evaluate_function: A 230-250",
                                  "host aten::mm 250-390", "host autograd::engine::evaluate_function: A 390-400",
                                  "host - 400-410", "host autograd::engine::evaluate_function: B 410-780",
                                  "host backward 780-800", "host ProfilerStep#0 800-810", "host update 810-950",
                                  "host ProfilerStep#0 950-1000"});
}

TEST_CASE("critical_path: an arrow from forward makes a thread one that is waited for") {
  for (const bool arrow : {false, true}) {
    TraceBuilder builder;
    builder.step(0, 0, 1000).op("forward", 10, 200);
    builder.add(st::EventKind::op, builder.cpu(2), "MyBackward", 300, 600);
    const uint32_t lane = builder.cpu(2);
    st::Trace trace = builder.done();
    if (arrow) trace.flows.push_back({.id = 1, .time_ns = 300, .lane = lane, .forward_backward = true, .finish = true});
    const auto parts = only_path(trace);
    CHECK((std::find(parts.begin(), parts.end(), "host MyBackward 300-600") != parts.end()) == arrow);
  }
}

TEST_CASE("critical_path: waiting for data and for Gloo") {
  TraceBuilder builder;
  builder.step(0, 0, 1000).annotation("data wait", 0, 300).op("forward", 300, 500).op("c10d::allreduce_", 500, 520);
  builder.annotation("reduce", 520, 900);
  builder.add(st::EventKind::annotation, builder.cpu(5), "gloo:all_reduce", 515, 880);
  const st::Trace trace = builder.done();
  const auto paths = st::critical_paths(st::Timeline(trace));
  check_whole(paths[0]);
  CHECK(paths[0].of(PathKind::data) == 300);
  CHECK(paths[0].of(PathKind::communication) == 880 - 515 + 15);
  CHECK(paths[0].of(PathKind::host) == 200 + 20 + 100);
}

TEST_CASE("critical_path: work that an earlier step left behind") {
  TraceBuilder builder;
  builder.step(0, 0, 100).launch("late", 10, 20, 500, 1).step(1, 100, 600);
  builder.runtime("cudaDeviceSynchronize", 110, 510);
  const st::Trace trace = builder.done();
  const auto paths = st::critical_paths(st::Timeline(trace));
  REQUIRE(paths.size() == 2);
  for (const st::CriticalPath& path : paths) check_whole(path);
  CHECK(parts_of(paths[1], trace) ==
        Parts{"device late 100-500", "sync cudaDeviceSynchronize 500-510", "host ProfilerStep#1 510-600"});
  CHECK(paths[0].of(PathKind::device) == 0);
}

TEST_CASE("critical_path: a device alone") {
  TraceBuilder builder;
  builder.kernel("a", 100, 200).kernel("b", 250, 300, 8);
  const st::Trace trace = builder.done();
  const auto paths = st::critical_paths(st::Timeline(trace));
  check_whole(paths[0]);
  CHECK(paths[0].of(PathKind::device) == 150);
}

TEST_CASE("critical_path: any trace gives a whole path, the same twice") {
  for (unsigned seed = 0; seed < 400; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](int64_t below) { return static_cast<int64_t>(random() % static_cast<uint64_t>(below)); };
    TraceBuilder builder;
    const int64_t span = 1 + pick(300);  // often very dense, with ends that coincide
    if (pick(4) > 0) builder.step(0, 0, span / 2 + 1).step(1, span / 2 + 1, span + 1);
    const char* const calls[] = {"cudaLaunchKernel", "cudaDeviceSynchronize", "cudaStreamSynchronize",
                                 "cudaMemcpyAsync"};
    const char* const names[] = {"aten::mm", "autograd::engine::evaluate_function: X", "gloo:all_reduce", "c10d::x",
                                 "data wait"};
    for (int i = 0; i < 60; ++i) {
      const int64_t begin = pick(span), end = begin + pick(pick(3) == 0 ? 1 + span : 5);
      const uint32_t thread = builder.cpu(1 + pick(3));
      switch (pick(4)) {
        case 0: builder.add(st::EventKind::op, thread, names[pick(4)], begin, end); break;
        case 1: builder.add(st::EventKind::annotation, thread, names[pick(5)], begin, end); break;
        case 2:
          builder.add(st::EventKind::runtime, thread, calls[pick(4)], begin, end);
          builder.correlation(static_cast<int32_t>(pick(20)));
          break;
        default:
          builder.add(pick(3) == 0 ? st::EventKind::memcpy : st::EventKind::kernel, builder.stream(7 + pick(3)),
                      pick(4) == 0 ? "ncclDevKernel_AllReduce" : "k", begin, end);
          builder.correlation(static_cast<int32_t>(pick(20)));
      }
    }
    const st::Trace trace = builder.done();
    const st::Timeline timeline(trace);
    const st::CriticalPathOptions options{.launch_latency_ns = pick(4)};
    const auto once = st::critical_paths(timeline, options), twice = st::critical_paths(timeline, options);
    REQUIRE(once.size() == timeline.steps().size());
    for (std::size_t i = 0; i < once.size(); ++i) {
      INFO("seed " << seed << " step " << i);
      check_whole(once[i]);
      REQUIRE(parts_of(once[i], trace) == parts_of(twice[i], trace));
    }
  }
}

TEST_CASE("critical_path: of a trace that PyTorch wrote") {
  const st::Trace trace = st::read_trace(SATURATE_SOURCE_DIR "/tests/data/traces/mlp.pt.trace.json.gz");
  const auto paths = st::critical_paths(st::Timeline(trace));
  REQUIRE(paths.size() == 3);
  for (const st::CriticalPath& path : paths) {
    check_whole(path);
    CHECK(path.of(PathKind::host) == path.step.end_ns - path.step.begin_ns);  // one thread of a CPU
    CHECK(path.segments.size() > 50);
  }
}
