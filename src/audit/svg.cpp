// SPDX-License-Identifier: Apache-2.0
#include "svg.hpp"

#include <cmath>
#include <cstdint>

#include "text.hpp"

namespace saturate::audit {
namespace {

using text::format;

// Length of the UTF-8 sequence at the start of `s`, 0 when there is none (overlong forms and surrogates included).
std::size_t utf8_length(std::string_view s) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xC2 && lead < 0xE0   ? 2
                             : (lead & 0xF0) == 0xE0       ? 3
                             : lead >= 0xF0 && lead < 0xF5 ? 4
                                                           : 0;
  if (length == 0 || s.size() < length) return 0;
  uint32_t code = lead & (0xFFu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3Fu);
  }
  const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  return overlong || (code >= 0xD800 && code < 0xE000) || code > 0x10FFFF ? 0 : length;
}

void append_escaped(std::string& out, std::string_view character) {
  const char c = character.front();
  if (c == '&') {
    out += "&amp;";
  } else if (c == '<') {
    out += "&lt;";
  } else if (c == '>') {
    out += "&gt;";
  } else if (c == '"') {
    out += "&quot;";
  } else if (c == '\'') {
    out += "&#39;";
  } else if (character.size() == 1 && (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) && c != '\n' && c != '\t') {
    out += "\xEF\xBF\xBD";
  } else {
    out += character;
  }
}

std::string closed(std::string_view element, std::string_view tip) {
  if (tip.empty()) return "/>\n";
  return "><title>" + escape(tip) + "</title></" + std::string(element) + ">\n";
}

}  // namespace

std::string escape(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) {
      out += "\xEF\xBF\xBD";
      text.remove_prefix(1);
    } else {
      append_escaped(out, text.substr(0, length));
      text.remove_prefix(length);
    }
  }
  return out;
}

double Scale::operator()(double value) const {
  const double part = logarithmic ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
  return first + part * (last - first);
}

Svg::Svg(int height, std::string_view label)
    : body_(format("<svg width=\"100%%\" height=\"%d\" role=\"img\" aria-label=\"%s\">\n", height,
                   escape(label).c_str())) {}

Svg& Svg::line(double x1, double y1, double x2, double y2, std::string_view css) {
  body_ += format("<line x1=\"%.2f%%\" y1=\"%.1f\" x2=\"%.2f%%\" y2=\"%.1f\" class=\"", x1, y1, x2, y2);
  body_.append(css).append("\"/>\n");
  return *this;
}

Svg& Svg::circle(double x, double y, double radius, std::string_view css, std::string_view tip) {
  body_ += format("<circle cx=\"%.2f%%\" cy=\"%.1f\" r=\"%.1f\" class=\"", x, y, radius);
  body_.append(css).append("\"").append(closed("circle", tip));
  return *this;
}

Svg& Svg::rect(double x, double y, double width, double height, std::string_view css, std::string_view tip) {
  body_ +=
      format("<rect x=\"%.2f%%\" y=\"%.1f\" width=\"%.2f%%\" height=\"%.1f\" rx=\"4\" class=\"", x, y, width, height);
  body_.append(css).append("\"").append(closed("rect", tip));
  return *this;
}

Svg& Svg::text(double x, double y, std::string_view anchor, std::string_view content, std::string_view css) {
  body_ += format("<text x=\"%.2f%%\" y=\"%.1f\" text-anchor=\"", x, y);
  body_.append(anchor).append("\" class=\"").append(css).append("\">").append(escape(content)).append("</text>\n");
  return *this;
}

Svg& Svg::path(const std::vector<std::pair<double, double>>& points, std::string_view css) {
  for (std::size_t i = 1; i < points.size(); ++i) {
    const auto [x1, y1] = points[i - 1];
    const auto [x2, y2] = points[i];
    if (std::isfinite(y1) && std::isfinite(y2)) line(x1, y1, x2, y2, css);
  }
  return *this;
}

// A polygon knows no percentages: it lies in an inner drawing that is 100 wide and is stretched.
Svg& Svg::area(const std::vector<std::pair<double, double>>& outline, int height, std::string_view css) {
  body_ +=
      format("<svg width=\"100%%\" height=\"%d\" viewBox=\"0 0 100 %d\" preserveAspectRatio=\"none\">", height, height);
  body_ += "<polygon points=\"";
  for (const auto& [x, y] : outline) body_ += format("%.2f,%.1f ", x, y);
  body_.append("\" class=\"").append(css).append("\"/></svg>\n");
  return *this;
}

}  // namespace saturate::audit
