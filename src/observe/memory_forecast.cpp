// SPDX-License-Identifier: Apache-2.0
#include "saturate/observe/memory_forecast.hpp"

#include "saturate/error.hpp"
#include "saturate/observe/memory_meter.hpp"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>

namespace saturate {
namespace {

// The bytes of every block that came (above 0) or went (below 0), in order.
using Timeline = std::vector<int64_t>;

Timeline record(const std::function<void(int64_t)>& probe, int64_t samples, c10::Device device) {
  Timeline events;
  const c10::Device wanted = device.is_cpu() || device.has_index() ? device : c10::Device(device.type(), 0);
  const MemoryMeter meter([&](const MemoryEvent& event) {
    if (event.device.type() != wanted.type() || (!wanted.is_cpu() && event.device != wanted)) return;
    events.push_back(event.bytes);
  });
  probe(samples);
  return events;
}

Timeline totals(const Timeline& events) {
  Timeline result;
  int64_t total = 0;
  for (const int64_t bytes : events) result.push_back(total += bytes);
  return result;
}

int64_t highest(const Timeline& events) {
  const Timeline sums = totals(events);
  return sums.empty() ? 0 : std::max<int64_t>(0, *std::max_element(sums.begin(), sums.end()));
}

bool alike(const Timeline& a, const Timeline& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](int64_t x, int64_t y) { return (x > 0) == (y > 0); });
}

}  // namespace

int64_t MemoryForecast::peak_bytes(int64_t samples) const {
  if (samples < 1) throw ConfigError(c10::str("MemoryForecast: ", samples, " samples; ask for 1 or more"));
  double peak = 0;
  for (const Moment& moment : moments_) peak = std::max(peak, moment.bytes(static_cast<double>(samples)));
  return static_cast<int64_t>(std::llround(peak));
}

int64_t MemoryForecast::largest_batch(int64_t limit_bytes) const {
  int64_t fits = 0, too_large = (int64_t{1} << 40) + 1;
  while (too_large - fits > 1) {
    const int64_t middle = fits + (too_large - fits) / 2;
    (peak_bytes(middle) <= limit_bytes ? fits : too_large) = middle;
  }
  return fits;
}

// A line a moment through the two largest probes.
void MemoryForecast::fit(const std::vector<Timeline>& timelines) {
  const std::size_t last = probes_.size() - 1;
  const auto n = static_cast<double>(probes_[last].samples);
  if (last == 0) {
    for (const int64_t bytes : timelines[0]) moments_.push_back({.per_sample = static_cast<double>(bytes) / n});
    return;
  }
  const auto line = [&](double at_smaller, double at_larger) {
    const auto smaller = static_cast<double>(probes_[last - 1].samples);
    const double slope = (at_larger - at_smaller) / (n - smaller);
    moments_.push_back({.constant = at_larger - slope * n, .per_sample = slope});
  };
  by_moments_ = timelines[last - 1].size() == timelines[last].size();
  if (!by_moments_) {
    line(static_cast<double>(probes_[last - 1].peak_bytes), static_cast<double>(probes_[last].peak_bytes));
    return;
  }
  for (std::size_t i = 0; i < timelines[last].size(); ++i) {
    line(static_cast<double>(timelines[last - 1][i]), static_cast<double>(timelines[last][i]));
  }
}

// Where the lines miss a third, smaller probe: what is left over there is the square's, which is never taken to shrink.
void MemoryForecast::fit_squares(const std::vector<Timeline>& timelines) {
  const std::size_t last = probes_.size() - 1;
  const MemoryProbe& third = probes_[last - 2];
  const auto measured = static_cast<double>(third.peak_bytes);
  if (std::abs(static_cast<double>(peak_bytes(third.samples)) - measured) <= 0.02 * measured) return;
  const auto n = static_cast<double>(third.samples);
  const auto a = static_cast<double>(probes_[last - 1].samples), b = static_cast<double>(probes_[last].samples);
  for (std::size_t i = 0; i < moments_.size(); ++i) {
    Moment& moment = moments_[i];
    const double square = (static_cast<double>(timelines[last - 2][i]) - moment.bytes(n)) / ((n - a) * (n - b));
    if (square <= 0) continue;
    // c (n - a)(n - b) is 0 at the two probes that the line goes through.
    moment.constant += square * a * b;
    moment.per_sample -= square * (a + b);
    moment.per_square = square;
  }
}

MemoryForecast forecast_memory(const std::function<void(int64_t)>& probe, std::vector<int64_t> sizes,
                               c10::Device device) {
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  if (sizes.empty()) throw ConfigError("forecast_memory: no batch sizes to try; give two or three small ones");
  if (sizes[0] < 1) {
    throw ConfigError(c10::str("forecast_memory: a batch size to try is ", sizes[0], "; give 1 sample or more"));
  }
  probe(sizes[0]);
  MemoryForecast forecast;
  std::vector<Timeline> events, sums;
  for (const int64_t size : sizes) {
    events.push_back(record(probe, size, device));
    sums.push_back(totals(events.back()));
    forecast.probes_.push_back({size, highest(events.back())});
  }
  const std::size_t last = sizes.size() - 1;
  if (last > 0 && !alike(events[last - 1], events[last])) sums[last - 1].clear();  // no line for each moment
  forecast.fit(sums);
  if (forecast.by_moments_ && last > 1 && alike(events[last - 2], events[last])) forecast.fit_squares(sums);
  return forecast;
}

}  // namespace saturate
