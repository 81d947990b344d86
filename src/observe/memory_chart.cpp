// SPDX-License-Identifier: Apache-2.0
// The chart of a memory timeline.
#include "../audit/svg.hpp"
#include "../audit/text.hpp"
#include "saturate/observe/memory_timeline.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace saturate {
namespace {

namespace text = audit::text;
using audit::Scale;
using audit::Svg;

constexpr int height = 250, top = 40, bottom = 196;

// Classes of its own, so that the chart looks the same alone and in any page.
constexpr const char* style = R"css(<style>
.mt-text{font:12.5px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:#5a6675}.mt-strong{font-weight:650}
.mt-line{stroke:#8492a4;stroke-width:1}.mt-dash{stroke:#8492a4;stroke-width:1;stroke-dasharray:3 3}
.mt-hover{fill:transparent}
.mt-0{fill:#2f5fd0}.mt-1{fill:#7aa2ff}.mt-2{fill:#0a7d5a}.mt-3{fill:#8492a4}.mt-4{fill:#e08a2e}.mt-5{fill:#c9563c}
@media (prefers-color-scheme:dark){.mt-text{fill:#9aa6b4}}
</style>)css";

using Points = std::vector<std::pair<double, double>>;

/// One device's samples, drawn as steps: a value holds until the next sample.
class Chart {
 public:
  Chart(const MemoryTimeline& timeline, std::vector<MemorySample> samples)
      : timeline_(timeline),
        samples_(std::move(samples)),
        peak_(*std::max_element(samples_.begin(), samples_.end(),
                                [](auto& a, auto& b) { return a.memory.total() < b.memory.total(); })),
        seconds_(std::max(timeline.seconds, samples_.back().seconds)),
        x_{0, seconds_ > 0 ? seconds_ : 1, 0, 100, false},
        y_{0, std::max(1.0, static_cast<double>(peak_.memory.total())), bottom, top, false},
        svg_(height, "memory of one step, by what it was for") {}

  std::string str() {
    for (std::size_t kind = 0; kind < memory_kinds; ++kind) draw(kind);
    draw_phases();
    draw_peak();
    svg_.line(0, bottom, 100, bottom, "mt-line");
    svg_.text(100, bottom + 16, "end", text::seconds(seconds_), "mt-text");
    for (std::size_t kind = 0; kind < memory_kinds; ++kind) draw_legend(kind);
    std::string svg = svg_.str();
    svg.insert(4, " xmlns=\"http://www.w3.org/2000/svg\"");  // a file of its own needs to be told
    return svg.insert(svg.find('>') + 1, style);
  }

 private:
  double end_of(std::size_t i) const { return i + 1 < samples_.size() ? samples_[i + 1].seconds : seconds_; }

  // Bytes up to this kind, from the ground on.
  static double stacked(const MemorySample& sample, std::size_t kinds) {
    const auto begin = sample.memory.bytes.begin();
    double sum = 0;
    for (auto it = begin; it != begin + static_cast<std::ptrdiff_t>(kinds); ++it) sum += static_cast<double>(*it);
    return sum;
  }

  static void add_step(Points& points, double from, double to, double y) {
    if (!points.empty() && points.back().second == y) {
      points.back().first = to;
    } else {
      points.insert(points.end(), {{from, y}, {to, y}});
    }
  }

  void draw(std::size_t kind) {
    if (std::all_of(samples_.begin(), samples_.end(), [&](auto& s) { return s.memory.bytes[kind] == 0; })) return;
    Points outline, ground;
    for (std::size_t i = 0; i < samples_.size(); ++i) {
      const double from = x_(samples_[i].seconds), to = x_(end_of(i));
      const double high = y_(stacked(samples_[i], kind + 1)), low = y_(stacked(samples_[i], kind));
      add_step(outline, from, to, high);
      add_step(ground, from, to, low);
    }
    outline.insert(outline.end(), ground.rbegin(), ground.rend());
    svg_.area(outline, height, "mt-" + std::to_string(kind));
  }

  void draw_phases() {
    double label_from = 0;
    for (std::size_t first = 0; first < samples_.size();) {
      std::size_t last = first;
      while (last + 1 < samples_.size() && samples_[last + 1].phase == samples_[first].phase) ++last;
      draw_phase(first, last, label_from);
      first = last + 1;
    }
  }

  void draw_phase(std::size_t first, std::size_t last, double& label_from) {
    const std::string& name = timeline_.phases[static_cast<std::size_t>(samples_[first].phase)];
    const double from = x_(samples_[first].seconds), to = x_(end_of(last));
    int64_t peak = 0;
    for (std::size_t i = first; i <= last; ++i) peak = std::max(peak, samples_[i].memory.total());
    if (first > 0) svg_.line(from, top - 8, from, bottom, "mt-dash");
    svg_.rect(from, top, to - from, bottom - top, "mt-hover",
              name + ": " + text::seconds(end_of(last) - samples_[first].seconds) + ", at most " + text::bytes(peak));
    const bool is_last = last + 1 == samples_.size();
    if (is_last && from > 88 && label_from <= 88) {
      svg_.text(100, top - 12, "end", name, "mt-text");
    } else if (to - from >= 4 && from >= label_from && from <= 88) {
      svg_.text(from + 0.5, top - 12, "start", name, "mt-text");
      label_from = from + 10;
    }
  }

  void draw_peak() {
    std::string words = text::bytes(peak_.memory.total()) + " at the peak";
    const std::string& mark = timeline_.marks[static_cast<std::size_t>(peak_.mark)];
    if (!mark.empty()) words += ", in " + mark;
    svg_.line(0, top, 100, top, "mt-dash").text(0, 12, "start", words, "mt-text mt-strong");
    svg_.circle(x_(peak_.seconds), top, 4, "mt-text");
  }

  void draw_legend(std::size_t kind) {
    const double x = static_cast<double>(kind % 3) * 33;
    const int y = bottom + 32 + static_cast<int>(kind / 3) * 18;
    svg_.rect(x, y - 9, 2, 10, "mt-" + std::to_string(kind));
    svg_.text(x + 3, y, "start", to_string(static_cast<MemoryKind>(kind)), "mt-text");
  }

  const MemoryTimeline& timeline_;
  std::vector<MemorySample> samples_;
  MemorySample peak_;
  double seconds_;
  Scale x_, y_;
  Svg svg_;
};

}  // namespace

std::string MemoryTimeline::to_svg(std::size_t device) const {
  MemoryTimeline thin = thinned();
  std::erase_if(thin.samples, [&](const MemorySample& s) { return s.device != static_cast<int64_t>(device); });
  if (thin.samples.empty()) return {};
  return Chart(*this, std::move(thin.samples)).str();
}

}  // namespace saturate
