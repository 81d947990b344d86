// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/shard_list.hpp"

#include "saturate/error.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace saturate::data {
namespace {

using Names = std::vector<std::string>;

bool is_number(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}
bool is_letter(std::string_view text) {
  return text.size() == 1 && ((text[0] >= 'a' && text[0] <= 'z') || (text[0] >= 'A' && text[0] <= 'Z'));
}

class Expansion {
 public:
  explicit Expansion(const std::string& pattern) : pattern_(pattern) {}

  Names all() const {
    if (pattern_.empty()) fail("is empty; give the path of a shard, or a brace list of paths");
    return expand(pattern_);
  }

 private:
  [[noreturn]] void fail(const std::string& why) const { throw ConfigError("shard list '" + pattern_ + "': " + why); }

  void check_count(std::size_t count) const {
    if (count > longest_shard_list) {
      fail("stands for more than " + std::to_string(longest_shard_list) + " names; check its numbers");
    }
  }

  // Text, a brace, and what comes after it, which is expanded first.
  Names expand(std::string_view text) const {
    const std::size_t open = text.find_first_of("{}");
    if (open == text.npos) return {std::string(text)};
    if (text[open] == '}') fail("has a '}' without a '{' before it");
    const std::size_t close = partner(text, open);
    const Names middles = choices(text.substr(open + 1, close - open - 1));
    const Names ends = expand(text.substr(close + 1));
    check_count(middles.size() * ends.size());
    Names names;
    for (const std::string& middle : middles) {
      for (const std::string& end : ends) names.push_back(std::string(text.substr(0, open)) + middle + end);
    }
    return names;
  }

  std::size_t partner(std::string_view text, std::size_t open) const {
    int depth = 0;
    for (std::size_t i = open; i < text.size(); ++i) {
      if (text[i] == '{') ++depth;
      if (text[i] == '}' && --depth == 0) return i;
    }
    fail("has a '{' without its '}'");
  }

  // What stands between two braces.
  Names choices(std::string_view inside) const {
    if (inside.empty()) fail("has an empty brace list '{}'");
    if (const auto range = as_range(inside)) return *range;
    Names names;
    const auto parts = split(inside);
    if (parts.size() == 1) {
      fail("has '{" + std::string(inside) + "}', which is no list: write {first..last} with whole numbers, or {a,b,c}");
    }
    for (const std::string_view part : parts) {
      for (std::string& name : expand(part)) names.push_back(std::move(name));
      check_count(names.size());
    }
    return names;
  }

  // At the commas that no inner brace holds.
  static std::vector<std::string_view> split(std::string_view text) {
    std::vector<std::string_view> parts;
    int depth = 0;
    std::size_t begin = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      depth += (text[i] == '{') - (text[i] == '}');
      if (text[i] != ',' || depth > 0) continue;
      parts.push_back(text.substr(begin, i - begin));
      begin = i + 1;
    }
    parts.push_back(text.substr(begin));
    return parts;
  }

  std::optional<Names> as_range(std::string_view inside) const {
    if (inside.find_first_of("{},") != inside.npos) return std::nullopt;
    const std::size_t dots = inside.find("..");
    if (dots == inside.npos) return std::nullopt;
    const std::string_view first = inside.substr(0, dots);
    std::string_view last = inside.substr(dots + 2), step = "1";
    if (const std::size_t more = last.find(".."); more != last.npos) {
      step = last.substr(more + 2);
      last = last.substr(0, more);
    }
    const int64_t stride = is_number(step) ? number(step) : 0;
    if (stride > 0 && is_number(first) && is_number(last)) return numbers(first, last, stride);
    if (stride > 0 && is_letter(first) && is_letter(last)) return letters(first[0], last[0], stride);
    fail("has '{" + std::string(inside) + "}', which is no range: both ends are whole numbers, or both are letters");
  }

  int64_t number(std::string_view text) const {
    int64_t value = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc{}) {
      fail("has the number " + std::string(text) + ", which is too large");
    }
    return value;
  }

  [[noreturn]] void backwards(const std::string& first, const std::string& last) const {
    fail("has the range {" + first + ".." + last + "}, which runs backwards; write {" + last + ".." + first + "}");
  }

  Names numbers(std::string_view first, std::string_view last, int64_t stride) const {
    const int64_t begin = number(first), end = number(last);
    if (begin > end) backwards(std::string(first), std::string(last));
    check_count(static_cast<std::size_t>((end - begin) / stride) + 1);
    // As bash: padded when either end is written with a leading zero, to the longer of the two.
    const auto padded = [](std::string_view text) { return text.size() > 1 && text[0] == '0'; };
    const std::size_t width = padded(first) || padded(last) ? std::max(first.size(), last.size()) : 0;
    Names names;
    for (int64_t i = 0; i <= (end - begin) / stride; ++i) {
      std::string text = std::to_string(begin + i * stride);
      if (text.size() < width) text.insert(0, width - text.size(), '0');
      names.push_back(std::move(text));
    }
    return names;
  }

  Names letters(char first, char last, int64_t stride) const {
    if (first > last) backwards(std::string(1, first), std::string(1, last));
    Names names;
    for (int64_t c = first; c <= last; c += stride) names.emplace_back(1, static_cast<char>(c));
    return names;
  }

  const std::string& pattern_;
};

}  // namespace

std::vector<std::string> shard_list(const std::string& pattern) { return Expansion(pattern).all(); }

}  // namespace saturate::data
