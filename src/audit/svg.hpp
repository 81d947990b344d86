// SPDX-License-Identifier: Apache-2.0
// Inline SVG whose x coordinates are percentages and whose y coordinates are pixels: a chart fills the width it gets,
// on a phone or a wide screen, and its text keeps its size.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace saturate::audit {

/// Text that is safe between tags and inside a quoted attribute. Bytes that are no UTF-8, and control characters,
/// become U+FFFD.
std::string escape(std::string_view text);

/// Maps values to percent of the width (or to pixels of the height), linearly or by logarithm.
struct Scale {
  double low = 0, high = 1;      ///< values
  double first = 0, last = 100;  ///< where they go
  bool logarithmic = false;
  double operator()(double value) const;
  bool inside(double value) const { return value >= low && value <= high; }
};

class Svg {
 public:
  /// `label` is what a screen reader says.
  Svg(int height, std::string_view label);
  Svg& line(double x1, double y1, double x2, double y2, std::string_view css);
  Svg& circle(double x, double y, double radius, std::string_view css, std::string_view tip = {});
  Svg& rect(double x, double y, double width, double height, std::string_view css, std::string_view tip = {});
  /// anchor: start, middle or end.
  Svg& text(double x, double y, std::string_view anchor, std::string_view content, std::string_view css = "t");
  /// Segments from point to point. A point that is not finite leaves a gap.
  Svg& path(const std::vector<std::pair<double, double>>& points, std::string_view css);
  /// A filled outline from point to point; `height` of the whole chart.
  Svg& area(const std::vector<std::pair<double, double>>& outline, int height, std::string_view css);
  std::string str() const { return body_ + "</svg>\n"; }

 private:
  std::string body_;
};

}  // namespace saturate::audit
