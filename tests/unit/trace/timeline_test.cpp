// SPDX-License-Identifier: Apache-2.0
#include "saturate/trace/timeline.hpp"
#include "saturate/trace/busy_time.hpp"
#include "saturate/trace/read_trace.hpp"
#include "saturate/trace/self_time.hpp"
#include "trace_builder.hpp"

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <map>
#include <random>
#include <string>

namespace st = saturate;
using support::TraceBuilder;

namespace {

int64_t self_of(const st::Timeline& timeline, const std::string& name) {
  int64_t sum = 0;
  for (const st::SelfTime& row : st::self_times(timeline)) {
    if (timeline.trace().text(row.name) == name) sum += row.self_ns;
  }
  return sum;
}

// Per lane: self times add up to the outermost spans', none is negative, and children lie in their parents.
void check_sums(const st::Timeline& timeline) {
  const st::Trace& trace = timeline.trace();
  std::map<uint32_t, int64_t> self, roots;
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    const auto& node = timeline.nodes()[i];
    if (!node.span) continue;
    REQUIRE(node.self_ns >= 0);
    REQUIRE(node.begin_ns <= node.end_ns);
    self[trace.events[i].lane] += node.self_ns;
    if (node.parent == st::Timeline::none) {
      roots[trace.events[i].lane] += node.end_ns - node.begin_ns;
    } else {
      const auto& parent = timeline.nodes()[node.parent];
      REQUIRE(parent.begin_ns <= node.begin_ns);
      REQUIRE(node.end_ns <= parent.end_ns);
      REQUIRE(trace.events[node.parent].lane == trace.events[i].lane);
    }
  }
  REQUIRE(self == roots);
}

}  // namespace

TEST_CASE("self time is what children leave, to the nanosecond") {
  const st::Trace trace = TraceBuilder().op("parent", 0, 100).op("a", 10, 40).op("b", 40, 90).done();
  const st::Timeline timeline(trace);
  CHECK(self_of(timeline, "parent") == 20);
  CHECK(self_of(timeline, "a") == 30);
  CHECK(self_of(timeline, "b") == 50);
  check_sums(timeline);
}

TEST_CASE("self time: equal begins and ends, instants, and spans without length") {
  TraceBuilder builder;
  builder.op("outer", 0, 50).op("inner", 0, 50).op("last", 30, 50).op("none", 50, 50).op("next", 50, 60);
  builder.add(st::EventKind::memory, builder.cpu(), "[memory]", 20, 20);
  const st::Trace trace = builder.done();
  const st::Timeline timeline(trace);
  CHECK(self_of(timeline, "outer") == 0);
  CHECK(self_of(timeline, "inner") == 30);
  CHECK(self_of(timeline, "last") == 20);
  CHECK(self_of(timeline, "next") == 10);
  check_sums(timeline);
}

TEST_CASE("self time: a child that sticks out is cut, one that hardly touches comes behind") {
  const st::Trace trace = TraceBuilder().op("a", 0, 100).op("rounded", 50, 101).op("later", 99, 200).done();
  const st::Timeline timeline(trace);
  CHECK(self_of(timeline, "rounded") == 50);
  CHECK(self_of(timeline, "later") == 100);
  check_sums(timeline);
}

TEST_CASE("a call inside of one of its own name counts once in the total") {
  const st::Trace trace = TraceBuilder().op("f", 0, 100).op("f", 10, 60).op("g", 20, 30).done();
  const st::Timeline timeline(trace);
  const auto rows = st::self_times(timeline);
  REQUIRE(trace.text(rows[0].name) == "f");
  CHECK(rows[0].calls == 2);
  CHECK(rows[0].self_ns == 90);
  CHECK(rows[0].total_ns == 100);
}

TEST_CASE("self times of one lane") {
  TraceBuilder builder;
  builder.op("f", 0, 100);
  builder.add(st::EventKind::op, builder.cpu(2), "f", 0, 30);
  const uint32_t second = builder.cpu(2);
  const st::Trace trace = builder.done();
  const st::Timeline timeline(trace);
  REQUIRE(st::self_times(timeline).size() == 1);
  CHECK(st::self_times(timeline)[0].self_ns == 130);
  const auto rows = st::self_times(timeline, {.lane = second});
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].self_ns == 30);
}

TEST_CASE("self times of random trees and of clocks that disagree add up, and twice the same") {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    TraceBuilder builder;
    for (int i = 0; i < 60; ++i) {
      const int64_t begin = static_cast<int64_t>(random() % 400);
      const int64_t length = static_cast<int64_t>(random() % (1u << random() % 9));
      const st::EventKind kinds[] = {st::EventKind::op, st::EventKind::python, st::EventKind::annotation};
      builder.add(kinds[random() % 3], builder.cpu(static_cast<int64_t>(random() % 3)),
                  std::string(1, static_cast<char>('a' + random() % 5)), begin, begin + length);
    }
    const st::Trace trace = builder.done();
    const st::Timeline timeline(trace);
    check_sums(timeline);
    const st::Timeline again(trace);
    for (std::size_t i = 0; i < trace.events.size(); ++i) {
      REQUIRE(timeline.nodes()[i].self_ns == again.nodes()[i].self_ns);
    }
    for (uint32_t lane = 0; lane < trace.lanes.size(); ++lane) {
      int64_t last = 0, sum = 0, expected = 0;
      for (const st::TraceSegment& segment : timeline.segments(lane)) {
        REQUIRE(segment.begin_ns >= last);
        REQUIRE(segment.begin_ns < segment.end_ns);
        last = segment.end_ns;
        sum += segment.end_ns - segment.begin_ns;
      }
      for (std::size_t i = 0; i < trace.events.size(); ++i) {
        const bool counted = trace.events[i].lane == lane && trace.events[i].kind != st::EventKind::python;
        if (counted) expected += timeline.nodes()[i].self_ns;
      }
      REQUIRE(sum == expected);
    }
  }
}

TEST_CASE("steps are the profiler's annotations, whole, whatever Python frame they begin in") {
  TraceBuilder builder;
  builder.step(4, 10, 90).step(5, 95, 190).op("work", 20, 80).op("more", 100, 180);
  builder.add(st::EventKind::python, builder.cpu(), "loop.py(1): train", 0, 50);
  const st::Trace trace = builder.done();
  const st::Timeline timeline(trace);
  REQUIRE(timeline.steps().size() == 2);
  CHECK(timeline.steps()[0].number == 4);
  CHECK(timeline.steps()[0].end_ns == 90);
  CHECK(timeline.steps()[1].begin_ns == 95);
  CHECK(self_of(timeline, "work") == 60);
  check_sums(timeline);
  const st::Trace bare = TraceBuilder().op("work", 20, 80).done();
  const st::Timeline one(bare);
  REQUIRE(one.steps().size() == 1);
  CHECK(one.steps()[0].number == -1);
  CHECK(one.steps()[0].end_ns == 80);
}

TEST_CASE("ranges named step stand in for the profiler's annotations") {
  const st::Trace trace = TraceBuilder().annotation("step", 10, 50).annotation("step", 60, 90).done();
  const st::Timeline timeline(trace);
  REQUIRE(timeline.steps().size() == 2);
  CHECK(timeline.steps()[1].number == 1);
  CHECK(timeline.steps()[1].begin_ns == 60);
  const st::Trace both = TraceBuilder().annotation("step", 10, 50).step(7, 60, 90).done();
  const st::Timeline profiler(both);
  REQUIRE(profiler.steps().size() == 1);
  CHECK(profiler.steps()[0].number == 7);
}

TEST_CASE("device work finds its launch and its operator") {
  TraceBuilder builder;
  builder.op("aten::linear", 0, 50).op("aten::addmm", 5, 40).launch("gemm", 10, 60, 90, 3).kernel("graph", 90, 95);
  builder.details().external_id = 77;
  builder.op("aten::relu", 55, 70);
  builder.details().external_id = 77;
  builder.kernel("orphan", 96, 99);
  const st::Trace trace = builder.done();
  const st::Timeline timeline(trace);
  const auto find = [&](const std::string& name) {
    for (uint32_t i = 0; i < trace.events.size(); ++i) {
      if (trace.text(trace.events[i].name) == name) return i;
    }
    return st::Timeline::none;
  };
  CHECK(timeline.launch_of(find("gemm")) == find("cudaLaunchKernel"));
  CHECK(timeline.operator_of(find("gemm")) == find("aten::addmm"));
  CHECK(timeline.operator_of(find("graph")) == find("aten::relu"));
  CHECK(timeline.launch_of(find("orphan")) == st::Timeline::none);
  CHECK(timeline.operator_of(find("orphan")) == st::Timeline::none);
  CHECK(timeline.operator_of(find("aten::addmm")) == find("aten::linear"));
  CHECK(timeline.launch_of(find("aten::addmm")) == st::Timeline::none);
}

TEST_CASE("the innermost event at a time, as a search through all says") {
  std::mt19937 random(11);
  for (int round = 0; round < 100; ++round) {
    TraceBuilder builder;
    for (int i = 0; i < 40; ++i) {
      const int64_t begin = static_cast<int64_t>(random() % 200);
      builder.op(std::string(1, static_cast<char>('a' + random() % 5)), begin,
                 begin + static_cast<int64_t>(random() % (1u << random() % 8)));
    }
    const st::Trace trace = builder.done();
    const st::Timeline timeline(trace);
    for (int64_t time = -1; time < 350; ++time) {
      int64_t depth = -1, found_depth = -1;  // events at a time are one chain: the innermost is the deepest
      const uint32_t found = timeline.innermost(0, time);
      for (uint32_t i = 0; i < trace.events.size(); ++i) {
        const auto& node = timeline.nodes()[i];
        if (node.begin_ns > time || node.end_ns <= time) continue;
        int64_t here = 0;
        for (uint32_t at = i; at != st::Timeline::none; at = timeline.nodes()[at].parent) ++here;
        depth = std::max(depth, here);
        if (i == found) found_depth = here;
      }
      REQUIRE(found_depth == depth);
      REQUIRE((found == st::Timeline::none) == (depth == -1));
    }
  }
}

TEST_CASE("a profile of Python's adds up") {
  const st::Trace trace = st::read_trace(SATURATE_SOURCE_DIR "/tests/data/traces/mlp.pt.trace.json.gz");
  const st::Timeline timeline(trace);
  check_sums(timeline);
  CHECK(timeline.steps().size() == 3);
  CHECK(timeline.main_lane() != st::Timeline::none);
  const auto busy = st::busy_time(timeline);
  REQUIRE(busy.threads.size() >= 1);
  CHECK(busy.threads[0].lane == timeline.main_lane());
  CHECK(busy.threads[0].busy_ns > 0);
  CHECK(busy.threads[0].busy_ns <= busy.end_ns - busy.begin_ns);
  CHECK(busy.devices.empty());
}

TEST_CASE("idle time of a device is what the host did meanwhile, and adds up") {
  TraceBuilder builder;
  builder.step(0, 0, 1000);
  builder.add(st::EventKind::annotation, builder.cpu(), "data wait", 0, 200);
  builder.op("aten::mm", 200, 300).runtime("cudaLaunchKernel", 250, 280);
  builder.runtime("cudaStreamSynchronize", 500, 700);
  builder.kernel("gemm", 300, 450).kernel("other", 400, 600, 8).kernel("gemm", 650, 660);
  const st::Trace trace = builder.done();
  const st::Timeline timeline(trace);
  const st::BusyTime busy = st::busy_time(timeline);
  REQUIRE(busy.devices.size() == 1);
  const st::DeviceBusy& device = busy.devices[0];
  CHECK(device.busy_ns == 310);                 // [300, 600) and [650, 660)
  CHECK(device.idle.data_wait_ns == 200);       // [0, 200)
  CHECK(device.idle.launch_ns == 100);          // [200, 300)
  CHECK(device.idle.synchronization_ns == 90);  // [600, 650), [660, 700)
  CHECK(device.idle.no_event_ns == 300);        // [700, 1000)
  CHECK(device.busy_ns + device.idle.total_ns() == busy.end_ns - busy.begin_ns);
  REQUIRE(device.gaps.size() == 3);
  CHECK(device.gaps[0].end_ns - device.gaps[0].begin_ns == 340);
  CHECK(trace.text(trace.events[device.gaps[1].host_event].name) == "data wait");
  CHECK(busy.threads[0].data_wait_ns == 200);
  CHECK(busy.threads[0].busy_ns == 500);
}

TEST_CASE("the thread of a backward pass answers where the one that trains shows nothing") {
  TraceBuilder builder;
  builder.step(0, 0, 1000).kernel("gemm", 0, 100);
  builder.add(st::EventKind::op, builder.cpu(2), "autograd::engine::evaluate_function: MmBackward0", 100, 400);
  builder.add(st::EventKind::runtime, builder.cpu(2), "cudaLaunchKernel", 300, 320);
  builder.add(st::EventKind::op, builder.cpu(3), "worker", 0, 1000);  // launches nothing: none of the device's business
  builder.runtime("cudaStreamSynchronize", 350, 450);
  const st::Trace trace = builder.done();
  const st::Timeline timeline(trace);
  const st::BusyTime busy = st::busy_time(timeline);
  REQUIRE(busy.devices.size() == 1);
  CHECK(busy.devices[0].idle.launch_ns == 250);           // [100, 350)
  CHECK(busy.devices[0].idle.synchronization_ns == 100);  // the one that trains first
  CHECK(busy.devices[0].idle.no_event_ns == 550);
  REQUIRE(busy.devices[0].gaps.size() == 1);
  CHECK(busy.devices[0].gaps[0].idle.launch_ns == 250);
  CHECK(trace.text(trace.events[busy.devices[0].gaps[0].host_event].name) == "ProfilerStep#0");
}

TEST_CASE("busy time of each step is that of its window") {
  TraceBuilder builder;
  builder.step(0, 0, 100).step(1, 120, 200).kernel("k", 50, 130).kernel("k", 150, 160).op("aten::mm", 10, 20);
  const st::Trace trace = builder.done();
  const st::Timeline timeline(trace);
  const auto steps = st::busy_time_of_steps(timeline);
  REQUIRE(steps.size() == 2);
  CHECK(steps[0].devices[0].busy_ns == 50);
  CHECK(steps[0].devices[0].idle.launch_ns == 10);
  CHECK(steps[1].devices[0].busy_ns == 20);
  CHECK(steps[1].devices[0].idle.total_ns() == 60);
  CHECK(steps[0].threads[0].busy_ns == 10);
}

TEST_CASE("busy and idle add up whatever the trace") {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    TraceBuilder builder;
    builder.step(0, 0, 500);
    for (int i = 0; i < 40; ++i) {
      const int64_t begin = static_cast<int64_t>(random() % 480);
      const int64_t end = begin + static_cast<int64_t>(random() % 60);
      switch (random() % 4) {
        case 0: builder.kernel("k", begin, end, static_cast<int64_t>(random() % 2)); break;
        case 1:
          builder.add(st::EventKind::runtime, builder.cpu(1 + static_cast<int64_t>(random() % 2)),
                      random() % 2 ? "cudaDeviceSynchronize" : "cudaLaunchKernel", begin, end);
          break;
        case 2: builder.op(random() % 2 ? "aten::mm" : "enumerate(DataLoader)#next", begin, end); break;
        default: builder.add(st::EventKind::python, builder.cpu(), "f", begin, end);
      }
    }
    const st::Trace trace = builder.done();
    const st::Timeline timeline(trace);
    for (const st::DeviceBusy& device : st::busy_time(timeline).devices) {
      REQUIRE(device.busy_ns + device.idle.total_ns() == 500);
    }
  }
}
