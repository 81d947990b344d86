// SPDX-License-Identifier: Apache-2.0
#include "saturate/distributed/comm_report.hpp"

#include "saturate/error.hpp"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <utility>

namespace saturate::distributed {
namespace {

template <class Items, class Value>
double median_over(const Items& items, Value&& value) {
  std::vector<double> values;
  for (const auto& item : items) values.push_back(value(item));
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

template <class... Values>
std::string line_of(const char* format, Values... values) {
  char line[256];
  std::snprintf(line, sizeof line, format, values...);
  return line;
}

bool same_buckets(const WindowTimes& a, const WindowTimes& b) {
  return std::equal(a.buckets.begin(), a.buckets.end(), b.buckets.begin(), b.buckets.end(),
                    [](const BucketTimes& one, const BucketTimes& other) {
                      return one.elements == other.elements && one.bytes == other.bytes;
                    });
}

/// Those after the first ones that have the last one's buckets.
std::vector<WindowTimes> comparable(const std::vector<WindowTimes>& windows, const CommReportOptions& options) {
  std::vector<WindowTimes> result;
  for (std::size_t i = static_cast<std::size_t>(options.skip); i < windows.size(); ++i) {
    if (same_buckets(windows[i], windows.back())) result.push_back(windows[i]);
  }
  if (result.empty()) {
    throw StateError("comm_report: " + std::to_string(windows.size()) + " windows, of which the first " +
                     std::to_string(options.skip) + " do not count; train on for a few, or lower skip");
  }
  return result;
}

BucketSummary summary_of(const std::vector<WindowTimes>& windows, std::size_t bucket) {
  const auto median = [&](double BucketTimes::*member) {
    return median_over(windows, [&](const WindowTimes& window) { return window.buckets[bucket].*member; });
  };
  BucketSummary summary;
  summary.times = windows.back().buckets[bucket];
  summary.times.launched = median(&BucketTimes::launched);
  summary.times.issued = median(&BucketTimes::issued);
  summary.times.done = median(&BucketTimes::done);
  summary.hidden = median_over(windows, [&](const WindowTimes& window) {
    const BucketTimes& times = window.buckets[bucket];
    const double whole = times.done - times.launched;
    if (whole <= 0) return 1.0;
    return std::clamp((window.backward_end - times.launched) / whole, 0.0, 1.0);
  });
  return summary;
}

CommPrediction predict(const CommReport& report, const Link& link, std::string change, std::vector<double> bytes) {
  CommPrediction prediction;
  prediction.change = std::move(change);
  for (const double size : bytes) prediction.bytes += static_cast<int64_t>(size);
  const double end = detail::pipeline_end(report.buckets, bytes, report.ranks, link, &prediction.communication);
  prediction.exposed = report.inside_hook + std::max(0.0, end - report.backward);
  const double step = (report.step > 0 ? report.step : report.backward + report.exposed - report.inside_hook) -
                      report.exposed + prediction.exposed;
  prediction.share = step > 0 ? prediction.exposed / step : 0;
  return prediction;
}

std::vector<CommPrediction> predictions_of(const CommReport& report, const Link& link) {
  std::vector<double> now, halves, whole;
  for (const BucketSummary& bucket : report.buckets) {
    now.push_back(static_cast<double>(bucket.times.bytes));
    halves.push_back(2 * static_cast<double>(bucket.times.elements));
    whole.push_back(static_cast<double>(bucket.times.gradient_bytes));
  }
  std::vector<CommPrediction> predictions{predict(report, link, "as it is (" + report.hook + ")", std::move(now))};
  if (std::accumulate(halves.begin(), halves.end(), 0.0) < static_cast<double>(report.bytes)) {
    predictions.push_back(predict(report, link, "16-bit compression (Bf16Compress, Fp16Compress)", std::move(halves)));
  }
  if (report.gradient_bytes > report.bytes) {
    predictions.push_back(predict(report, link, "no compression", std::move(whole)));
  }
  return predictions;
}

std::string bound_verdict(const CommReport& report) {
  const char* of = report.step > 0 ? "the step" : "backward";
  std::string text =
      line_of("communication-bound: %.0f %% of %s is exposed all-reduce", 100 * report.exposed_share(), of);
  for (const CommPrediction& prediction : report.predictions) {
    if (prediction.bytes >= report.bytes || prediction.share > report.exposed_share() - 0.01) continue;
    text += line_of("; %s would make it %.0f %%", prediction.change.c_str(), 100 * prediction.share);
  }
  if (report.inside_hook > report.exposed / 2) {
    text += line_of(". Most of it, %.1f ms, backward spends inside the hook", 1e3 * report.inside_hook);
  } else if (report.buckets.size() == 1) {
    text += ". One bucket is reduced when backward is over: lower bucket_bytes";
  } else if (report.link && !report.predictions.empty()) {
    const double latency =
        ring_cost(report.ranks).rounds * report.link->latency * static_cast<double>(report.buckets.size());
    if (latency > report.predictions[0].communication / 2) {
      text += ". Most of it is latency: raise bucket_bytes";
    }
  }
  return text;
}

std::string bandwidths(const CommReport& report) {
  std::string text = line_of("bandwidth: algorithm %.3f GB/s, bus %.3f GB/s", 1e-9 * report.algorithm_bandwidth,
                             1e-9 * report.bus_bandwidth);
  if (report.link) {
    text += line_of(", %.0f %% of the measured %.3f GB/s", 100 * report.bus_bandwidth / report.link->bandwidth,
                    1e-9 * report.link->bandwidth);
  }
  return text + "\n";
}

std::string bucket_table(const CommReport& report) {
  std::string text = "  bucket         bytes   launched ms   in hook ms    done ms   hidden\n";
  for (const BucketSummary& bucket : report.buckets) {
    const BucketTimes& times = bucket.times;
    text +=
        line_of("%8zu  %12lld   %11.2f   %10.2f   %8.2f   %4.0f %%\n", times.index, static_cast<long long>(times.bytes),
                1e3 * times.launched, 1e3 * (times.issued - times.launched), 1e3 * times.done, 100 * bucket.hidden);
  }
  return text;
}

std::string prediction_table(const CommReport& report) {
  std::string text = report.link ? "by the model (latency + bytes / bandwidth, of the probe):\n"
                                 : "by the model (bytes / bandwidth, as reached; no probe was given):\n";
  for (const CommPrediction& prediction : report.predictions) {
    text += line_of("  %-50s %12lld bytes, communication %.2f ms, exposed %.2f ms, %.0f %%\n",
                    prediction.change.c_str(), static_cast<long long>(prediction.bytes), 1e3 * prediction.communication,
                    1e3 * prediction.exposed, 100 * prediction.share);
  }
  return text;
}

}  // namespace

void CommReportOptions::validate() const {
  if (skip < 0) throw ConfigError("CommReportOptions: skip is " + std::to_string(skip) + "; give 0 or more");
  if (!(bound_share >= 0 && bound_share <= 1)) {
    throw ConfigError("CommReportOptions: bound_share is " + std::to_string(bound_share) + "; give 0 to 1");
  }
}

double detail::pipeline_end(const std::vector<BucketSummary>& buckets, const std::vector<double>& bytes, int ranks,
                            const Link& link, double* communication) {
  double end = 0;
  *communication = 0;
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    const double seconds = ring_cost(ranks).seconds(link, bytes[i]);
    *communication += seconds;
    end = std::max(end, buckets[i].times.issued) + seconds;
  }
  return end;
}

CommReport comm_report(const MeasuredHook& hook, std::optional<Link> link, const CommReportOptions& options) {
  return comm_report(hook.windows(), hook.name(), hook.ranks().rank(), hook.ranks().world_size(), link, options);
}

CommReport comm_report(const std::vector<WindowTimes>& all, const std::string& hook, int rank, int ranks,
                       std::optional<Link> link, const CommReportOptions& options) {
  options.validate();
  if (link) link->validate();
  CommReport report;
  report.hook = hook;
  report.rank = rank;
  report.ranks = ranks;
  report.bound_share = options.bound_share;
  report.link = link;
  if (ranks == 1) return report;  // the hook is not called
  const std::vector<WindowTimes> windows = comparable(all, options);
  report.windows = static_cast<int64_t>(windows.size());
  report.begin_is_known = windows.back().begin_is_known;
  std::vector<double> steps;
  for (const WindowTimes& window : windows) {
    if (window.step > 0) steps.push_back(window.step);
  }
  report.step = median_over(steps, [](double seconds) { return seconds; });
  report.backward = median_over(windows, [](const auto& window) { return window.backward_end; });
  report.overlapped = median_over(windows, [](const auto& window) { return window.overlapped(); });
  report.exposed = median_over(windows, [](const auto& window) { return window.exposed(); });
  report.inside_hook = median_over(windows, [](const auto& window) { return window.inside_hook(); });
  report.communication = report.overlapped + report.exposed;
  for (std::size_t i = 0; i < windows.back().buckets.size(); ++i) {
    report.buckets.push_back(summary_of(windows, i));
    report.bytes += report.buckets.back().times.bytes;
    report.gradient_bytes += report.buckets.back().times.gradient_bytes;
  }
  if (report.communication <= 0) return report;
  report.algorithm_bandwidth = static_cast<double>(report.bytes) / report.communication;
  report.bus_bandwidth = ring_cost(ranks).factor * report.algorithm_bandwidth;
  if (report.bytes > 0) report.predictions = predictions_of(report, link.value_or(Link{0, report.bus_bandwidth}));
  return report;
}

double CommReport::exposed_share() const {
  const double whole = step > 0 ? step : backward + exposed - inside_hook;
  return whole > 0 ? exposed / whole : 0;
}

std::string CommReport::verdict() const {
  if (ranks == 1) return "one process: nothing is reduced";
  if (exposed_share() >= bound_share) return bound_verdict(*this);
  const double hidden = communication > 0 ? overlapped / communication : 1;
  return line_of("compute-bound: %.0f %% of communication is hidden, %.1f %% of %s is exposed", 100 * hidden,
                 100 * exposed_share(), step > 0 ? "the step" : "backward");
}

std::string CommReport::text() const {
  std::string text = verdict() + "\n";
  if (ranks == 1) return text;
  text += line_of("rank %d of %d, %s, medians of %lld windows: step %.2f ms, backward %.2f ms%s\n", rank, ranks,
                  hook.c_str(), static_cast<long long>(windows), 1e3 * step, 1e3 * backward,
                  begin_is_known ? "" : " from the first bucket on");
  text += line_of("communication %.2f ms = overlapped %.2f ms + exposed %.2f ms (%.2f ms of it inside the hook)\n",
                  1e3 * communication, 1e3 * overlapped, 1e3 * exposed, 1e3 * inside_hook);
  return text + bandwidths(*this) + bucket_table(*this) + prediction_table(*this);
}

}  // namespace saturate::distributed
