// SPDX-License-Identifier: Apache-2.0
// The chart of a roofline.
#include "../audit/svg.hpp"
#include "../audit/text.hpp"
#include "saturate/observe/roofline.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

namespace saturate {
namespace {

// Classes and variables of its own, so that the chart looks the same alone and in any page.
constexpr const char* roofline_style = R"css(<style>
.rf{--rf-ink:#17202b;--rf-soft:#5a6675;--rf-line:#e1e5ea;--rf-base:#8492a4;--rf-card:#fff;
--rf-forward:#2f5fd0;--rf-backward:#0a7d5a;--rf-recompute:#bd4b1f}
@media (prefers-color-scheme:dark){.rf{--rf-ink:#e6eaef;--rf-soft:#9aa6b4;--rf-line:#2a323c;--rf-base:#8090a3;
--rf-card:#181e25;--rf-forward:#7aa2ff;--rf-backward:#45cf9f;--rf-recompute:#f4935f}}
.rf-text{font:12.5px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--rf-soft)}
.rf-strong{fill:var(--rf-ink);font-weight:650}
.rf-grid{stroke:var(--rf-line);stroke-width:1}.rf-roof{stroke:var(--rf-base);stroke-width:2.4;stroke-linecap:round}
.rf-forward{fill:var(--rf-forward)}.rf-backward{fill:var(--rf-backward)}.rf-recompute{fill:var(--rf-recompute)}
.rf-point{stroke:var(--rf-card);stroke-width:1.5;fill-opacity:.85}.rf-step{fill:none;stroke:var(--rf-ink);stroke-width:2}
</style>)css";

class RooflineChart {
 public:
  explicit RooflineChart(const Roofline& roofline)
      : roofline_(roofline), svg_(height, "roofline: rate against arithmetic intensity, both logarithmic") {
    for (const RooflinePoint& point : roofline.points) {
      if (!point.reached || point.intensity <= 0) continue;
      points_.push_back(&point);
      used_.insert(point.work.precision);
    }
    find_range();
  }

  std::string str() {
    draw_grid();
    for (const auto& [precision, peak] : roofline_.roofs.peaks) {
      if (used_.empty() || used_.contains(precision)) draw_roof(precision, peak);
    }
    // The longest first: small ones stay visible upon them.
    for (const RooflinePoint* point : points_) draw_point(*point);
    if (roofline_.step.reached && roofline_.step.intensity > 0) draw_step();
    draw_legend();
    std::string svg = svg_.str();
    svg.insert(4, " xmlns=\"http://www.w3.org/2000/svg\" class=\"rf\"");
    return svg.insert(svg.find('>') + 1, roofline_style);
  }

 private:
  static constexpr int height = 380, top = 34, bottom = 316;

  // Whole decades around the points and the roofs.
  void find_range() {
    double low_x = 1e-1, high_x = 1e2, low_y = 1e12, high_y = 0;
    for (const auto& [precision, peak] : roofline_.roofs.peaks) {
      if (!used_.empty() && !used_.contains(precision)) continue;
      high_y = std::max(high_y, peak);
      low_y = std::min(low_y, peak / 100);
      if (roofline_.roofs.memory_bandwidth > 0) high_x = std::max(high_x, 8 * peak / roofline_.roofs.memory_bandwidth);
    }
    std::vector<const RooflinePoint*> all = points_;
    if (roofline_.step.reached && roofline_.step.intensity > 0) all.push_back(&roofline_.step);
    for (const RooflinePoint* point : all) {
      low_x = std::min(low_x, point->intensity);
      high_x = std::max(high_x, point->intensity);
      low_y = std::min(low_y, *point->reached);
      high_y = std::max(high_y, *point->reached);
    }
    const auto down = [](double value) { return std::pow(10, std::floor(std::log10(value))); };
    const auto up = [](double value) { return std::pow(10, std::ceil(std::log10(value) + 0.05)); };
    x_ = {down(low_x), up(high_x), 8, 99, true};
    y_ = {down(low_y), up(std::max(high_y, 2 * low_y)), bottom, top, true};
  }

  void draw_grid() {
    for (double tick = x_.low; tick <= x_.high * 1.001; tick *= 10) {
      svg_.line(x_(tick), top, x_(tick), bottom, "rf-grid");
      svg_.text(x_(tick), bottom + 16, "middle", audit::text::format("%g", tick), "rf-text");
    }
    for (double tick = y_.low; tick <= y_.high * 1.001; tick *= 10) {
      svg_.line(x_.first, y_(tick), x_.last, y_(tick), "rf-grid");
      svg_.text(x_.first - 0.8, y_(tick) + 4, "end", audit::text::format("%g", tick / 1e9), "rf-text");
    }
    svg_.text(0, 14, "start", "GFLOP/s", "rf-text").text(x_.last, bottom + 33, "end", "FLOP per byte", "rf-text");
  }

  // Up along the bandwidth to the ridge, then level.
  void draw_roof(const std::string& precision, double peak) {
    const double bandwidth = roofline_.roofs.memory_bandwidth;
    double ridge = x_.low;
    if (bandwidth > 0) {
      ridge = std::clamp(peak / bandwidth, x_.low, x_.high);
      const double from = std::max(x_.low, y_.low / bandwidth);
      if (from < ridge) {
        svg_.line(x_(from), y_(from * bandwidth), x_(ridge), y_(std::min(peak, ridge * bandwidth)), "rf-roof");
      }
    }
    svg_.line(x_(ridge), y_(peak), x_.last, y_(peak), "rf-roof");
    svg_.text(x_.last, y_(peak) - 6, "end", precision + " " + audit::text::number(peak / 1e9) + " GFLOP/s",
              "rf-text rf-strong");
  }

  void draw_point(const RooflinePoint& point) {
    const double part = std::clamp(point.work.seconds / roofline_.seconds, 0.0, 1.0);
    const std::string phase(to_string(point.work.phase));
    std::string tip = point.work.name + " " + point.work.shapes + ", " + phase + ": " +
                      audit::text::number(*point.reached / 1e9) + " GFLOP/s at " +
                      audit::text::number(point.intensity) + " FLOP per byte, " + audit::text::percent(part) +
                      " of the step";
    if (point.share) tip += ", " + audit::text::percent(*point.share) + " of attainable";
    svg_.circle(x_(point.intensity), y_(*point.reached), 4 + 14 * std::sqrt(part), "rf-point rf-" + phase, tip);
  }

  void draw_step() {
    const RooflinePoint& step = roofline_.step;
    svg_.circle(x_(step.intensity), y_(*step.reached), 8, "rf-step", "the whole step");
    const bool right = x_(step.intensity) > 80;
    svg_.text(x_(step.intensity) + (right ? -1.5 : 1.5), y_(*step.reached) + 4, right ? "end" : "start", "whole step",
              "rf-text rf-strong");
  }

  void draw_legend() {
    double x = 8;
    for (const WorkPhase phase : {WorkPhase::forward, WorkPhase::backward, WorkPhase::recompute}) {
      const bool drawn =
          std::any_of(points_.begin(), points_.end(), [&](const auto* p) { return p->work.phase == phase; });
      if (!drawn) continue;
      const std::string name(to_string(phase));
      svg_.circle(x, height - 10, 5, "rf-" + name).text(x + 2, height - 6, "start", name, "rf-text");
      x += 25;
    }
  }

  const Roofline& roofline_;
  std::vector<const RooflinePoint*> points_;
  std::set<std::string> used_;  // precisions
  audit::Scale x_, y_;
  audit::Svg svg_;
};

}  // namespace

std::string Roofline::to_svg() const { return RooflineChart(*this).str(); }

}  // namespace saturate
