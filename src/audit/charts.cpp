// SPDX-License-Identifier: Apache-2.0
#include "charts.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "svg.hpp"
#include "text.hpp"

namespace saturate::audit {
namespace {

using text::format;

// The ratios that could be measured; a report from a file may hold rounds that cannot be.
std::vector<double> ratios_of(const TacticResult& candidate) {
  try {
    return speed_ratios(candidate.raw);
  } catch (const std::exception&) {
    return {};
  }
}

// Very slow candidates run off the left edge and are named there: the interesting part lies around 1.
Scale ratio_scale(const std::vector<const TacticResult*>& candidates) {
  double low = 0.9, high = 1.1;
  for (const TacticResult* candidate : candidates) {
    for (const double ratio : ratios_of(*candidate)) {
      if (std::isfinite(ratio)) high = std::max(high, ratio);
      if (ratio >= 0.6) low = std::min(low, ratio);
    }
  }
  return {low / 1.03, high * 1.03, 1, 99, true};
}

std::vector<double> ratio_ticks(const Scale& x) {
  std::vector<double> ticks = {1};
  for (const double tick :
       {0.5, 2.0, 0.75, 1.5, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1.25, 0.9, 0.8, 0.7, 0.6, 1.1, 1.2, 1.4, 1.75, 4.0}) {
    const bool far = std::all_of(ticks.begin(), ticks.end(), [&](double t) { return std::abs(x(t) - x(tick)) > 11; });
    if (x.inside(tick) && far) ticks.push_back(tick);
  }
  return ticks;
}

std::string ratio_axis(const Scale& x) {
  Svg svg(20, "axis: speed against the baseline");
  for (const double tick : ratio_ticks(x)) {
    const double at = x(tick);
    svg.text(at, 14, at > 94 ? "end" : at < 6 ? "start" : "middle", format("%g×", tick), tick == 1 ? "t strong" : "t");
  }
  return "<div class=\"row axis\"><div></div><div>" + svg.str() + "</div><div></div></div>\n";
}

void draw_ratio(Svg& svg, const Scale& x, const TacticResult& candidate) {
  const Verdict& v = candidate.verdict;
  const std::string css = tone(v);
  if (!x.inside(v.ratio)) {
    svg.text(x.first, 25, "start", "◂ off the scale, " + text::times(v.ratio), "t " + css);
    return;
  }
  for (const double ratio : ratios_of(candidate)) {
    if (x.inside(ratio)) svg.circle(x(ratio), 20, 3.5, "dot " + css, text::times(ratio) + " in one round");
  }
  const double low = x(std::max(v.ci.low, x.low)), high = x(std::min(v.ci.high, x.high));
  svg.line(low, 20, high, 20, "whisker " + css).line(low, 14, low, 26, "whisker " + css);
  svg.line(high, 14, high, 26, "whisker " + css);
  svg.circle(x(v.ratio), 20, 5.5, "mark " + css,
             text::times(v.ratio) + ", interval " + text::times(v.ci.low) + " to " + text::times(v.ci.high));
}

std::string ratio_row(const Scale& x, const TacticResult& candidate) {
  const Verdict& v = candidate.verdict;
  Svg svg(40, candidate.title + ": " + v.reason);
  for (const double tick : ratio_ticks(x)) svg.line(x(tick), 0, x(tick), 40, tick == 1 ? "one" : "grid");
  if (v.rounds > 0) {
    draw_ratio(svg, x, candidate);
  } else {
    svg.text(x.first, 25, "start", "no rounds", "t");
  }
  return "<div class=\"row\"><div class=\"name\">" + escape(candidate.title) + "</div><div class=\"plot\">" +
         svg.str() + "</div><div class=\"value " + tone(v) + "\">" + (v.rounds > 0 ? text::times(v.ratio) : "–") + " " +
         badge(v) + "</div></div>\n";
}

// Room for two labels at the left, inside the plot.
Scale padded(double low, double high, double bottom, double top) {
  const double pad = high > low ? 0.08 * (high - low) : std::max(0.05 * std::abs(high), 1e-12);
  return {low - pad, high + pad, bottom, top, false};
}

void label_ends(Svg& svg, const Scale& y, double low, double high, std::string (*words)(double)) {
  svg.line(0, y(low), 100, y(low), "grid").text(0, y(low) - 4, "start", words(low));
  if (y(low) - y(high) > 20) svg.line(0, y(high), 100, y(high), "grid").text(0, y(high) - 4, "start", words(high));
}

std::pair<double, double> finite_range(const std::vector<double>& values) {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  return {low, high};
}

// A round step that gives at most `most` ticks.
double tick_step(double range, double most) {
  for (const double step : {0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0}) {
    if (range <= step * most) return step;
  }
  return range;
}

struct Trade {
  double memory, time;  // the plain step: 1, 1
  Interval times;       // of the rounds
  std::string label, css, tip;
};

// By memory, the most first. The plain step is hollow, as the unchanged workload is everywhere on the page.
std::vector<Trade> trades(const std::vector<MemoryPoint>& curve) {
  std::vector<Trade> all;
  int64_t plain = 0;
  const auto front = memory_front(curve);
  for (const MemoryPoint& point : curve) {
    if (!point.counts()) continue;
    plain = point.baseline_peak_bytes();
    const bool best = std::find(front.begin(), front.end(), &point) != front.end();
    const Interval speeds = point.speed_range();
    all.push_back({point.memory(),
                   1 / point.speed(),
                   {1 / speeds.high, 1 / speeds.low},
                   point.label.substr(point.label.rfind(' ') + 1),
                   best ? "mark accent" : "mark none",
                   point.label + ": " + text::bytes(point.peak_bytes()) + ", " + text::times(point.memory()) +
                       " memory, " + text::times(1 / point.speed()) + " time"});
  }
  if (all.empty()) return all;
  all.push_back({1, 1, {1, 1}, "plain", "hollow", "plain: " + text::bytes(plain)});
  std::stable_sort(all.begin(), all.end(), [](const Trade& a, const Trade& b) { return a.memory > b.memory; });
  return all;
}

bool beats_plain(const std::vector<MemoryPoint>& curve) {
  return std::any_of(curve.begin(), curve.end(),
                     [](const MemoryPoint& p) { return p.counts() && p.memory() <= 1 && p.speed() >= 1; });
}

void memory_axes(Svg& svg, const Scale& x, const Scale& y) {
  const double up = tick_step(y.high - y.low, 5), along = tick_step(x.high, 6);
  for (double tick = std::ceil(y.low / up) * up; y.inside(tick); tick += up) {
    svg.line(0, y(tick), 100, y(tick), std::abs(tick - 1) < 1e-9 ? "one" : "grid");
    svg.text(0, y(tick) - 4, "start", format("%g×", tick));
  }
  svg.line(0, y.first, 100, y.first, "axisline");
  for (double tick = 0; x.inside(tick); tick += along) svg.text(x(tick), y.first + 18, "middle", format("%g×", tick));
  svg.text(0, 12, "start", "time of a step", "t small")
      .text(100, y.first + 34, "end", "peak memory of a step", "t small");
}

}  // namespace

const char* tone(const Verdict& verdict) {
  return verdict.outcome == Outcome::kept ? "good" : verdict.outcome == Outcome::rejected ? "bad" : "none";
}

std::string badge(const Verdict& verdict) {
  return std::string("<span class=\"badge ") + tone(verdict) + "\">" + to_string(verdict.outcome) + "</span>";
}

std::string ratio_chart(const std::vector<const TacticResult*>& candidates) {
  const Scale x = ratio_scale(candidates);
  std::string html = "<div class=\"rows\">\n" + ratio_axis(x);
  for (const TacticResult* candidate : candidates) html += ratio_row(x, *candidate);
  return html + "</div>\n";
}

std::string rounds_chart(const TacticResult& candidate) {
  if (ratios_of(candidate).empty()) return {};
  std::vector<double> speeds;
  for (const AbRound& round : candidate.raw.rounds) {
    speeds.push_back(round.baseline.timed.samples_per_second());
    speeds.push_back(round.candidate.timed.samples_per_second());
  }
  const auto [low, high] = finite_range(speeds);
  const Scale y = padded(low, high, 112, 22);
  const auto count = static_cast<double>(speeds.size() / 2);
  const Scale x{0.5, count + 0.5, 14, 100, false};
  Svg svg(132, "samples per second of both arms, round by round");
  label_ends(svg, y, low, high, text::thousands);
  for (std::size_t i = 0; i + 1 < speeds.size(); i += 2) {
    const double at = x(static_cast<double>(i / 2 + 1));
    svg.line(at, y(speeds[i]), at, y(speeds[i + 1]), "pair");
    svg.circle(at, y(speeds[i]), 4.5, "hollow", "baseline: " + text::thousands(speeds[i]) + " samples/s");
    svg.circle(at, y(speeds[i + 1]), 4.5, std::string("mark ") + tone(candidate.verdict),
               "candidate: " + text::thousands(speeds[i + 1]) + " samples/s");
    svg.text(at, 129, "middle", std::to_string(i / 2 + 1));
  }
  return svg.str();
}

std::string loss_chart(const TacticResult& candidate) {
  const auto baseline = loss_curve(candidate.raw, Arm::baseline);
  const auto mine = loss_curve(candidate.raw, Arm::candidate);
  std::vector<double> means;
  int64_t samples = 1;
  for (const auto* curve : {&baseline, &mine}) {
    for (const LossPoint& point : *curve) means.push_back(point.mean);
    if (!curve->empty()) samples = std::max(samples, curve->back().samples);
  }
  const auto [low, high] = finite_range(means);
  if (!(low <= high)) return {};
  const Scale y = padded(low, high, 112, 22);
  const Scale x{0, static_cast<double>(samples), 14, 98, false};
  Svg svg(132, "mean loss of both arms along the samples");
  label_ends(svg, y, low, high, text::number);
  for (const auto* curve : {&baseline, &mine}) {
    const std::string css = curve == &mine ? std::string("curve ") + tone(candidate.verdict) : "curve base";
    std::vector<std::pair<double, double>> points;
    for (const LossPoint& p : *curve) points.emplace_back(x(static_cast<double>(p.samples)), y(p.mean));
    svg.path(points, css);
  }
  svg.text(98, 129, "end", text::thousands(static_cast<double>(samples)) + " samples");
  return svg.str();
}

std::string batch_chart(const AuditReport& report) {
  std::vector<const BatchPoint*> points;
  double top = 0, smallest = std::numeric_limits<double>::infinity(), largest = 0;
  for (const BatchPoint& point : report.batch_curve) {
    if (point.rounds.empty()) continue;
    points.push_back(&point);
    top = std::max(top, point.samples_per_second());
    smallest = std::min(smallest, static_cast<double>(point.batch_size));
    largest = std::max(largest, static_cast<double>(point.batch_size));
  }
  if (points.size() < 2 || !(top > 0) || !(smallest < largest)) return {};
  const Scale x{smallest, largest, 8, 92, true};
  const Scale y{0, top, 168, 30, false};
  Svg svg(218, "samples per second over the batch size");
  svg.line(0, 168, 100, 168, "axisline");
  std::vector<std::pair<double, double>> line;
  for (const BatchPoint* point : points) {
    line.emplace_back(x(static_cast<double>(point->batch_size)), y(point->samples_per_second()));
  }
  svg.path(line, "curve accent");
  for (std::size_t i = 0; i < points.size(); ++i) {
    const auto [at, height] = line[i];
    const bool own = points[i]->batch_size == report.batch_size;
    svg.circle(at, height, own ? 7 : 5, own ? "mark accent own" : "mark accent");
    svg.text(at, height - 12, "middle", text::thousands(points[i]->samples_per_second()), "t strong");
    svg.text(at, 186, "middle", std::to_string(points[i]->batch_size), own ? "t strong" : "t");
    if (points[i]->peak_bytes() > 0) svg.text(at, 202, "middle", text::bytes(points[i]->peak_bytes()), "t small");
    if (own) svg.text(at, 216, "middle", "yours", "t small");
  }
  return svg.str();
}

std::string memory_chart(const std::vector<MemoryPoint>& curve) {
  const std::vector<Trade> all = trades(curve);
  if (all.empty()) return {};
  std::vector<double> spent;
  for (const Trade& trade : all) spent.insert(spent.end(), {trade.times.low, trade.times.high});
  const auto [low, high] = finite_range(spent);
  const Scale x{0, 1.06 * all.front().memory, 8, 98, false};
  const Scale y = padded(low, std::max(high, low + 0.1), 196, 34);
  Svg svg(236, "time of a step over its peak memory, against the plain step");
  memory_axes(svg, x, y);
  std::vector<std::pair<double, double>> line;
  for (const MemoryPoint* point : memory_front(curve)) line.emplace_back(x(point->memory()), y(1 / point->speed()));
  if (!beats_plain(curve)) line.emplace_back(x(1), y(1));
  std::sort(line.begin(), line.end());
  svg.path(line, "curve accent");
  // The front rises to the left, so a label stands free at the upper right of its point; where the one before is close,
  // at the lower left.
  double before_x = 1000, before_y = 1000;
  for (const Trade& trade : all) {
    const double at = x(trade.memory), height = y(trade.time);
    svg.line(at, y(trade.times.low), at, y(trade.times.high), "pair");
    svg.circle(at, height, 5.5, trade.css, trade.tip);
    if (at > 90) {
      svg.text(at, height - 11, "end", trade.label, "t strong");
    } else if (before_x - at < 14 && std::abs(before_y - height) < 22) {
      svg.text(at - 0.8, height + 18, "end", trade.label, "t strong");
    } else {
      svg.text(at + 0.8, height - 8, "start", trade.label, "t strong");
    }
    before_x = at;
    before_y = height;
  }
  return svg.str();
}

std::string lr_chart(const LrCurve& curve) {
  std::vector<double> rates;
  for (const LrPoint& point : curve.points) rates.push_back(point.lr);
  const auto [low, high] = finite_range(rates);
  if (curve.points.size() < 2 || !(low <= high)) return {};
  const auto first = static_cast<double>(curve.points.front().step),
             last = static_cast<double>(curve.points.back().step);
  if (!(first < last)) return {};
  const Scale y = padded(low, high, 170, 22);
  const Scale x{first, last, 14, 98, false};
  Svg svg(190, "learning rate over the optimizer steps");
  label_ends(svg, y, low, high, text::number);
  std::vector<std::pair<double, double>> points;
  for (const LrPoint& point : curve.points) points.emplace_back(x(static_cast<double>(point.step)), y(point.lr));
  svg.path(points, "curve accent");
  svg.text(14, 187, "start", "step " + text::thousands(first));
  svg.text(98, 187, "end", "step " + text::thousands(last));
  return svg.str();
}

std::string loader_chart(double loader, double training) {
  const double top = std::max(loader, training);
  if (!(top > 0) || !std::isfinite(top)) return {};
  Svg svg(112, "the loader alone against training");
  svg.text(0, 14, "start", "Loader alone").text(100, 14, "end", text::thousands(loader) + " samples/s", "t strong");
  svg.rect(0, 22, 100, 18, "track").rect(0, 22, std::max(0.6, 100 * loader / top), 18, "bar accent");
  svg.text(0, 70, "start", "Training").text(100, 70, "end", text::thousands(training) + " samples/s", "t strong");
  svg.rect(0, 78, 100, 18, "track").rect(0, 78, std::max(0.6, 100 * training / top), 18, "bar base");
  return svg.str();
}

}  // namespace saturate::audit
