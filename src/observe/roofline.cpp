// SPDX-License-Identifier: Apache-2.0
#include "saturate/observe/roofline.hpp"

#include "../audit/text.hpp"
#include "saturate/error.hpp"
#include "saturate/observe/peaks.hpp"
#include "saturate/observe/spec_peaks.hpp"

#include <algorithm>
#include <cmath>

namespace saturate {
namespace {

/// Seconds of these FLOPs at the peak; nothing where there are some and it is not known.
std::optional<double> compute_seconds(const OpWork& work, const Roofs& roofs) {
  if (work.flops == 0) return 0;
  const auto peak = roofs.peak(work.precision);
  if (!peak) return std::nullopt;
  return static_cast<double>(work.flops) / *peak;
}

/// From the time at the peak and the roofs.
RooflinePoint roofline_point(OpWork work, std::optional<double> computing, const Roofs& roofs) {
  RooflinePoint point;
  const auto flops = static_cast<double>(work.flops), bytes = static_cast<double>(work.bytes);
  if (bytes > 0) point.intensity = flops / bytes;
  if (flops > 0 && work.seconds > 0) point.reached = flops / work.seconds;
  if (computing && roofs.memory_bandwidth > 0) {
    const double moving = bytes / roofs.memory_bandwidth;
    point.least_seconds = std::max(*computing, moving);
    if (*point.least_seconds > 0) {
      point.bound = *computing > moving ? Bound::compute : Bound::memory;
      point.attainable = flops / *point.least_seconds;
    }
    if (work.seconds > 0) point.share = *point.least_seconds / work.seconds;
  }
  point.work = std::move(work);
  return point;
}

void require_counts(const OpWork& work) {
  if (work.flops >= 0 && work.bytes >= 0 && work.calls >= 0 && work.seconds >= 0) return;
  throw ConfigError("make_roofline: " + work.name + " has a negative count or time; give what was counted");
}

/// Time at the peaks of the phases that count; nothing where one of them is not known.
std::optional<double> seconds_at_peak(const Roofline& roofline, bool with_recompute) {
  double sum = 0;
  for (const RooflinePoint& point : roofline.points) {
    if (point.work.phase == WorkPhase::recompute && !with_recompute) continue;
    const auto seconds = compute_seconds(point.work, roofline.roofs);
    if (!seconds) return std::nullopt;
    sum += *seconds;
  }
  return sum;
}

std::string fixed(const char* pattern, const std::optional<double>& value, double unit) {
  return value ? audit::text::format(pattern, *value / unit) : "-";
}

std::string roofline_line(const RooflinePoint& point, std::size_t width, std::string_view phase) {
  using audit::text::format;
  const OpWork& work = point.work;
  const auto attainable = work.flops > 0 ? point.attainable : std::nullopt;
  const auto seconds = work.seconds > 0 ? std::optional(work.seconds) : std::nullopt;
  std::string name = work.name + (work.shapes.empty() ? "" : " " + work.shapes);
  if (name.size() > width) name = name.substr(0, width - 3) + "...";
  return format("%-*s  %-9s  %-8s  %5lld  %9s  %10.3f  %9.3f  %8.2f  %9s  %9s  %6s  %s\n", static_cast<int>(width),
                name.c_str(), std::string(phase).c_str(), work.precision.c_str(), static_cast<long long>(work.calls),
                fixed("%.3f", seconds, 1e-3).c_str(), static_cast<double>(work.flops) / 1e9,
                static_cast<double>(work.bytes) / 1e6, point.intensity, fixed("%.2f", point.reached, 1e9).c_str(),
                fixed("%.2f", attainable, 1e9).c_str(),
                point.share ? audit::text::format("%.0f %%", 100 * *point.share).c_str() : "-",
                std::string(to_string(point.bound)).c_str());
}

std::string utilization_text(const std::optional<double>& share) {
  return share ? audit::text::percent(*share) : "unknown";
}

}  // namespace

std::string_view to_string(WorkPhase phase) {
  return phase == WorkPhase::forward ? "forward" : phase == WorkPhase::backward ? "backward" : "recompute";
}

std::string_view to_string(Bound bound) {
  return bound == Bound::compute ? "compute" : bound == Bound::memory ? "memory" : "unknown";
}

Roofs Roofs::of(const Peaks& measured) {
  Roofs roofs{"measured, " + measured.machine, measured.memory_bandwidth};
  for (const GemmPeak& peak : measured.gemm) roofs.peaks.emplace_back(peak.precision, peak.flops);
  return roofs;
}

Roofs Roofs::of(const SpecPeak& spec) {
  Roofs roofs{std::string(spec.source), spec.memory_bandwidth};
  for (const char* precision : {"float64", "float32", "tf32", "bfloat16", "float16"}) {
    if (const auto flops = spec.flops(precision)) roofs.peaks.emplace_back(precision, *flops);
  }
  return roofs;
}

std::optional<double> Roofs::peak(std::string_view precision) const {
  for (const auto& [name, flops] : peaks) {
    if (name == precision && flops > 0) return flops;
  }
  return std::nullopt;
}

Roofline make_roofline(std::vector<OpWork> work, Roofs roofs, double seconds) {
  if (!(seconds > 0) || !std::isfinite(seconds)) {
    throw ConfigError(audit::text::format("make_roofline: the step took %g s; give what it took", seconds));
  }
  std::for_each(work.begin(), work.end(), require_counts);
  Roofline roofline{std::move(roofs), seconds, {}, {}};
  OpWork all{.name = "step", .shapes = {}, .precision = {}, .calls = 1, .seconds = seconds};
  std::optional<double> computing = 0;
  for (OpWork& one : work) {
    const auto at_peak = compute_seconds(one, roofline.roofs);
    computing = computing && at_peak ? std::optional(*computing + *at_peak) : std::nullopt;
    all.flops += one.flops;
    all.bytes += one.bytes;
    roofline.points.push_back(roofline_point(std::move(one), at_peak, roofline.roofs));
  }
  std::stable_sort(roofline.points.begin(), roofline.points.end(),
                   [](const auto& a, const auto& b) { return a.work.seconds > b.work.seconds; });
  roofline.step = roofline_point(std::move(all), computing, roofline.roofs);
  return roofline;
}

std::optional<double> Roofline::mfu() const {
  const auto at_peak = seconds_at_peak(*this, /*with_recompute=*/false);
  return at_peak ? std::optional(*at_peak / seconds) : std::nullopt;
}

std::optional<double> Roofline::hfu() const {
  const auto at_peak = seconds_at_peak(*this, /*with_recompute=*/true);
  return at_peak ? std::optional(*at_peak / seconds) : std::nullopt;
}

std::string Roofline::table(std::size_t most) const {
  using audit::text::format;
  const std::size_t shown = std::min(most, points.size());
  std::size_t width = 12;
  for (std::size_t i = 0; i < shown; ++i) {
    width = std::max(width, points[i].work.name.size() + 1 + points[i].work.shapes.size());
  }
  width = std::min<std::size_t>(width, 60);
  std::string text = "roofs: " + roofs.source + "\n" +
                     format(
                         "%-*s  phase      products  calls         ms       GFLOP         MB    FLOP/B   GFLOP/s "
                         " attainable  share  bound by\n",
                         static_cast<int>(width), "operator");
  for (std::size_t i = 0; i < shown; ++i) text += roofline_line(points[i], width, to_string(points[i].work.phase));
  if (shown < points.size()) text += format("and %zu more\n", points.size() - shown);
  text += roofline_line(step, width, {});
  text += "MFU " + utilization_text(mfu()) + ", HFU " + utilization_text(hfu()) + "\n";
  return text;
}

}  // namespace saturate
