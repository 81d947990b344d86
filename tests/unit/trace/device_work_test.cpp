// SPDX-License-Identifier: Apache-2.0
#include "saturate/trace/device_work.hpp"
#include "saturate/trace/host_syncs.hpp"
#include "saturate/trace/read_trace.hpp"
#include "trace_builder.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

namespace st = saturate;
using Catch::Matchers::ContainsSubstring;
using support::TraceBuilder;

TEST_CASE("device_work: kernels, small ones, and those that the device waited for") {
  const st::Trace trace = TraceBuilder()
                              .launch("gemm", 0, 5, 50'005, 1)                // nothing before it: late
                              .launch("add", 10, 50'005, 52'000, 2)           // queued
                              .launch("add", 60'000, 60'006, 62'000, 3)       // the stream was done at 52'000
                              .launch("other", 60'010, 60'020, 61'000, 4, 8)  // first of its stream
                              .kernel("unknown", 70'000, 90'000)              // no launch in the trace
                              .done();
  const st::DeviceWork work = st::device_work(st::Timeline(trace));
  CHECK(work.kernels == 5);
  CHECK(work.kernel_ns == 50'000 + 1'995 + 1'994 + 980 + 20'000);
  CHECK(work.small_kernels == 3);
  CHECK(work.small_kernel_ns == 1'995 + 1'994 + 980);
  CHECK(work.launched == 4);
  CHECK(work.launched_late == 3);
  CHECK(work.launch_delay_ns == (5 + 49'995 + 6 + 10) / 4);
}

TEST_CASE("device_work: copies by direction and host memory, and calls into the driver for memory") {
  TraceBuilder builder;
  builder.copy("Memcpy HtoD (Pageable -> Device)", 0, 1'000, 4'000)
      .copy("Memcpy HtoD (Pageable -> Device)", 2'000, 3'000, 6'000);
  builder.copy("Memcpy HtoD (Pinned -> Device)", 4'000, 4'500, 10'000)
      .copy("Memcpy DtoD (Device -> Device)", 5'000, 5'100, -1);
  builder.add(st::EventKind::memset, builder.stream(), "Memset (Device)", 6'000, 6'010);
  builder.runtime("cudaMalloc", 7'000, 7'400)
      .runtime("cudaFree", 8'000, 8'100)
      .runtime("cudaMallocAsync", 9'000, 9'100);
  const st::Trace trace = builder.done();
  const st::DeviceWork work = st::device_work(st::Timeline(trace));
  REQUIRE(work.copies.size() == 3);
  CHECK(work.copies[0].direction == "HtoD");
  CHECK(work.copies[0].host == st::CopyMemory::pageable);
  CHECK(work.copies[0].count == 2);
  CHECK(work.copies[0].bytes == 10'000);
  CHECK(work.copies[0].bytes_per_second() == 5e9);
  CHECK(work.copies[1].host == st::CopyMemory::pinned);
  CHECK(work.copies[1].bytes_per_second() == 20e9);
  CHECK(work.copies[2].direction == "DtoD");
  CHECK(work.copies[2].bytes_per_second() == 0);
  CHECK(work.memsets == 1);
  CHECK(work.driver_allocations == 2);
  CHECK(work.driver_allocation_ns == 500);
  CHECK(work.driver_releases == 1);
}

TEST_CASE("device_work: memory events by the memory they are in") {
  TraceBuilder builder;
  const auto memory = [&](int device_type, int64_t bytes, int64_t total) {
    builder.add(st::EventKind::memory, builder.cpu(), "[memory]", 5, 5);
    builder.details().device_type = device_type;
    builder.details().bytes = bytes;
    builder.details().total_allocated = total;
  };
  memory(1, 1024, 1024);
  memory(1, 512, 1536);
  memory(1, -1024, 512);
  memory(0, 64, 64);
  const st::Trace trace = builder.done();
  const st::DeviceWork work = st::device_work(st::Timeline(trace));
  CHECK(work.device_memory.allocations == 2);
  CHECK(work.device_memory.allocated_bytes == 1536);
  CHECK(work.device_memory.releases == 1);
  CHECK(work.device_memory.released_bytes == 1024);
  CHECK(work.device_memory.peak_allocated == 1536);
  CHECK(work.device_memory.peak_reserved == -1);
  CHECK(work.host_memory.allocated_bytes == 64);
  const st::Trace read = st::read_trace(SATURATE_SOURCE_DIR "/tests/data/traces/mlp.pt.trace.json.gz");
  const st::MemoryWork host = st::device_work(st::Timeline(read)).host_memory;
  CHECK(host.allocations + host.releases == 102);  // mlp.counts.json
  CHECK(host.peak_allocated > 0);
}

TEST_CASE("host_syncs: counted once each, with the range that called") {
  TraceBuilder builder;
  builder.op("aten::item", 5, 8);  // before the first step
  builder.step(0, 10, 100).step(1, 110, 200);
  builder.add(st::EventKind::annotation, builder.cpu(), "logging", 20, 60);
  builder.op("aten::item", 30, 50).op("aten::_local_scalar_dense", 31, 49).runtime("cudaStreamSynchronize", 35, 48);
  builder.op("aten::_fused_adamw_", 61, 69).op("aten::item", 62, 65);
  builder.op("aten::to", 120, 150).runtime("cudaStreamSynchronize", 130, 149);
  builder.runtime("cudaDeviceSynchronize", 160, 170).runtime("cudaLaunchKernel", 180, 185);
  const st::Trace trace = builder.done();
  const st::HostSyncs syncs = st::host_syncs(st::Timeline(trace));
  CHECK(syncs.per_step == std::vector<int64_t>{1, 2});
  REQUIRE(syncs.rows.size() == 3);
  CHECK(syncs.rows[0].call == "aten::item");
  CHECK(syncs.rows[0].caller == "logging");
  CHECK(syncs.rows[0].ns == 20);
  CHECK(syncs.rows[1].call == "cudaStreamSynchronize");
  CHECK(syncs.rows[1].caller == "aten::to");
  CHECK(syncs.rows[2].caller.empty());
  CHECK(st::over_budget(syncs, 2).empty());
  const std::string text = st::over_budget(syncs, 1);
  CHECK_THAT(text, ContainsSubstring("step 1 waits for the device 2 times, 1 allowed") &&
                       ContainsSubstring("aten::item in logging (1)"));
}
