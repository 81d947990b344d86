// SPDX-License-Identifier: Apache-2.0
#include "text.hpp"

#include <array>
#include <cmath>
#include <cstdarg>
#include <cstdio>

namespace saturate::audit::text {

std::string format(const char* pattern, ...) {
  std::va_list arguments;
  va_start(arguments, pattern);
  std::va_list again;
  va_copy(again, arguments);
  std::string result(static_cast<std::size_t>(std::vsnprintf(nullptr, 0, pattern, arguments)), '\0');
  std::vsnprintf(result.data(), result.size() + 1, pattern, again);
  va_end(again);
  va_end(arguments);
  return result;
}

std::string number(double value) {
  if (!std::isfinite(value)) return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  const double size = std::abs(value);
  if (size == 0) return "0";
  if (size < 1e-3 || size >= 1e15) return format("%.2e", value);
  if (size >= 100) return format("%.0f", value);
  if (size >= 10) return format("%.1f", value);
  if (size >= 0.1) return format("%#.3g", value);
  return format("%.2g", value);
}

std::string thousands(double value) {
  std::string digits = number(value);
  if (!std::isfinite(value) || std::abs(value) < 1000 || digits.find('e') != std::string::npos) return digits;
  const std::size_t first = value < 0 ? 1 : 0;
  for (std::size_t at = digits.size(); at > first + 3; at -= 3) digits.insert(at - 3, 1, ',');
  return digits;
}

std::string ratio(double value) {
  if (!std::isfinite(value)) return number(value);
  if (value >= 100) return format("%.1f", value);
  if (value != 1 && std::abs(value - 1) < 0.005) return format("%.3f", value);
  return format("%.2f", value);
}

std::string times(double value) { return ratio(value) + "×"; }

std::string seconds(double value) {
  if (!std::isfinite(value)) return number(value);
  if (value >= 120) return format("%.0f min %02.0f s", std::floor(value / 60), std::floor(std::fmod(value, 60)));
  if (value >= 1) return format("%.3g s", value);
  if (value >= 1e-3) return format("%.3g ms", value * 1e3);
  return format("%.3g µs", value * 1e6);
}

std::string bytes(int64_t value) {
  if (value <= 0) return "unknown";
  static constexpr std::array<const char*, 5> units = {"B", "KiB", "MiB", "GiB", "TiB"};
  double size = static_cast<double>(value);
  std::size_t unit = 0;
  for (; size >= 1000 && unit + 1 < units.size(); ++unit) size /= 1024;
  return format(size >= 100 || unit == 0 ? "%.0f %s" : "%.1f %s", size, units[unit]);
}

std::string percent(double share) {
  if (!std::isfinite(share)) return "unknown";
  const double value = share * 100;
  return format(value != 0 && std::abs(value) < 9.95 ? "%.1f %%" : "%.0f %%", value);
}

std::string join(const std::vector<std::string>& words, std::string_view last) {
  std::string result;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) result += i + 1 == words.size() ? last : std::string_view(", ");
    result += words[i];
  }
  return result;
}

std::string first_line(std::string_view message) { return std::string(message.substr(0, message.find('\n'))); }

}  // namespace saturate::audit::text
