// SPDX-License-Identifier: Apache-2.0
#include "saturate/distributed/bandwidth_probe.hpp"

#include "saturate/error.hpp"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

namespace saturate::distributed {
namespace {

/// Of one all-reduce on this rank; of its stream, where it has one.
double time_all_reduce(const ProcessGroup& group, const at::Tensor& tensor) {
  if (tensor.is_cpu()) {
    const auto begin = std::chrono::steady_clock::now();
    group.all_reduce(tensor);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  const c10::DeviceGuard device(tensor.device());
  const c10::Stream stream = c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device());
  c10::Event begin(tensor.device().type(), c10::EventFlag::BACKEND_DEFAULT);
  c10::Event end(tensor.device().type(), c10::EventFlag::BACKEND_DEFAULT);
  begin.record(stream);
  group.all_reduce(tensor);  // the stream waits for it
  end.record(stream);
  end.synchronize();
  return 1e-3 * begin.elapsedTime(end);
}

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

double slowest(const ProcessGroup& group, double seconds) {
  const at::Tensor all = at::tensor({seconds}, at::kDouble).to(group.device());
  group.all_reduce(all, ReduceOp::max);
  return all.item<double>();
}

ProbedSize probe_size(const ProcessGroup& group, const ProbeOptions& options, int64_t bytes) {
  const int64_t elements = bytes / static_cast<int64_t>(c10::elementSize(options.dtype));
  const at::Tensor tensor = at::zeros({elements}, at::TensorOptions(group.device()).dtype(options.dtype));
  std::vector<double> seconds;
  for (int i = 0; i < options.warmup + options.repeats; ++i) {
    group.barrier();
    const double taken = time_all_reduce(group, tensor);
    if (i >= options.warmup) seconds.push_back(taken);
  }
  ProbedSize probed;
  probed.bytes = static_cast<int64_t>(tensor.nbytes());
  probed.seconds = slowest(group, median_of(std::move(seconds)));
  probed.algorithm_bandwidth = static_cast<double>(probed.bytes) / probed.seconds;
  probed.bus_bandwidth = ring_cost(group.world_size()).factor * probed.algorithm_bandwidth;
  return probed;
}

void require_same_options(const ProcessGroup& group, const ProbeOptions& options) {
  const std::string mine = c10::str(options.bytes, " bytes of ", options.dtype, ", ", options.repeats, " repeats, ",
                                    options.warmup, " to warm up");
  const auto texts = group.gather_text(mine);
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    throw ConfigError(c10::str("probe_all_reduce: rank ", rank, " asks for ", texts[rank], ", rank 0 for ", texts[0],
                               "; give the same on all"));
  }
}

}  // namespace

void ProbeOptions::validate() const {
  if (bytes.empty()) throw ConfigError("ProbeOptions: no sizes; give at least one");
  const bool adds = c10::isFloatingType(dtype) || c10::isIntegralType(dtype, /*includeBool=*/false);
  if (!adds) throw ConfigError(c10::str("ProbeOptions: dtype ", dtype, " is not added up; give a number's"));
  for (const int64_t size : bytes) {
    if (size >= static_cast<int64_t>(c10::elementSize(dtype))) continue;
    throw ConfigError(c10::str("ProbeOptions: a size of ", size, " bytes; give at least one element of ", dtype));
  }
  if (repeats < 1) throw ConfigError(c10::str("ProbeOptions: repeats is ", repeats, "; give at least 1"));
  if (warmup < 0) throw ConfigError(c10::str("ProbeOptions: warmup is ", warmup, "; give 0 or more"));
}

AllReduceProbe probe_all_reduce(const ProcessGroup& group, const ProbeOptions& options) {
  // What one rank refuses all refuse, before anybody waits for anybody.
  std::string refused;
  try {
    options.validate();
  } catch (const ConfigError& error) {
    refused = error.what();
  }
  for (const std::string& text : group.gather_text(refused)) {
    if (!text.empty()) throw ConfigError(refused.empty() ? "on another rank: " + text : refused);
  }
  AllReduceProbe probe;
  probe.ranks = group.world_size();
  probe.backend = group.backend_name();
  if (probe.ranks == 1) return probe;
  require_same_options(group, options);
  for (const int64_t bytes : options.bytes) probe.sizes.push_back(probe_size(group, options, bytes));
  std::sort(probe.sizes.begin(), probe.sizes.end(), [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
  probe.link = detail::fit_link(probe.ranks, probe.sizes);
  for (const ProbedSize& size : probe.sizes) {
    const double predicted = ring_cost(probe.ranks).seconds(probe.link, static_cast<double>(size.bytes));
    probe.worst_error = std::max(probe.worst_error, std::abs(predicted / size.seconds - 1));
  }
  return probe;
}

Link detail::fit_link(int ranks, const std::vector<ProbedSize>& sizes) {
  if (ranks == 1 || sizes.empty()) return {};
  constexpr int64_t large = 16;  // sizes from a sixteenth of the largest on: none that a burst lets through
  const ProbedSize& smallest = sizes.front();
  // Each follows from the other; a round brings them closer by the ratio of the sizes.
  double latency = 0, seconds_a_byte = 0;
  for (int round = 0; round < 32; ++round) {
    double sum = 0, count = 0;
    for (const ProbedSize& size : sizes) {
      if (size.bytes * large < sizes.back().bytes) continue;
      sum += std::max(size.seconds - latency, 1e-3 * size.seconds) / static_cast<double>(size.bytes);
      ++count;
    }
    seconds_a_byte = sum / count;
    latency = std::max(0.0, smallest.seconds - seconds_a_byte * static_cast<double>(smallest.bytes));
  }
  const AllReduceCost cost = ring_cost(ranks);
  return {latency / cost.rounds, cost.factor / seconds_a_byte};
}

std::string AllReduceProbe::table() const {
  if (ranks == 1) return "one rank: there is no all-reduce\n";
  std::string text = "all-reduce, " + std::to_string(ranks) + " ranks, " + backend +
                     "\n       bytes         ms   algorithm GB/s    bus GB/s   fit / measured\n";
  char line[160];
  for (const ProbedSize& size : sizes) {
    const double predicted = ring_cost(ranks).seconds(link, static_cast<double>(size.bytes));
    std::snprintf(line, sizeof line, "%12lld   %8.3f   %14.3f   %9.3f   %14.2f\n", static_cast<long long>(size.bytes),
                  1e3 * size.seconds, 1e-9 * size.algorithm_bandwidth, 1e-9 * size.bus_bandwidth,
                  predicted / size.seconds);
    text += line;
  }
  std::snprintf(line, sizeof line, "latency %.1f us a message, bandwidth %.3f GB/s (ring)\n", 1e6 * link.latency,
                1e-9 * link.bandwidth);
  return text + line;
}

}  // namespace saturate::distributed
