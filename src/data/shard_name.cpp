// SPDX-License-Identifier: Apache-2.0
#include "shard_name.hpp"

#include "saturate/error.hpp"

#include <dirent.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <string_view>
#include <utility>

namespace saturate::data::detail {
namespace {

constexpr std::size_t widest = 18;  // digits that a number has room for

bool is_digit(char c) { return c >= '0' && c <= '9'; }

[[noreturn]] void refuse_pattern(const std::string& pattern, const std::string& why) {
  throw ConfigError("ShardWriter: the pattern '" + pattern + "' " + why + "; write it as 'train-%06d.tar'");
}

}  // namespace

ShardName::ShardName(std::string pattern) {
  const std::size_t slash = pattern.rfind('/');
  const std::size_t begin = slash == pattern.npos ? 0 : slash + 1;
  const std::size_t percent = pattern.find('%');
  if (percent == pattern.npos) refuse_pattern(pattern, "has no place for the shard's number");
  if (percent < begin) refuse_pattern(pattern, "has a '%' in its folder");
  if (pattern.find('%', percent + 1) != pattern.npos) refuse_pattern(pattern, "has more than one '%'");
  std::size_t i = percent + 1;
  fill_ = i < pattern.size() && pattern[i] == '0' ? '0' : ' ';
  while (i < pattern.size() && is_digit(pattern[i]) && width_ <= widest) {
    width_ = width_ * 10 + static_cast<std::size_t>(pattern[i++] - '0');
  }
  if (i == pattern.size() || pattern[i] != 'd' || width_ > widest) {
    refuse_pattern(pattern, "has a '%' that is not followed by a width and a 'd'");
  }
  folder_ = pattern.substr(0, begin);
  before_ = pattern.substr(begin, percent - begin);
  after_ = pattern.substr(i + 1);
}

std::string ShardName::of(int64_t number) const {
  std::string digits = std::to_string(number);
  if (digits.size() < width_) digits.insert(0, width_ - digits.size(), fill_);
  return folder_ + before_ + digits + after_;
}

std::vector<int64_t> ShardName::existing() const {
  std::vector<int64_t> numbers;
  const std::unique_ptr<::DIR, int (*)(::DIR*)> folder(::opendir(folder_.empty() ? "." : folder_.c_str()), &::closedir);
  if (!folder) return numbers;  // the first shard will say what is wrong with it
  while (const ::dirent* const entry = ::readdir(folder.get())) {
    std::string_view name = entry->d_name;
    if (name.size() <= before_.size() + after_.size() || !name.starts_with(before_) || !name.ends_with(after_))
      continue;
    name = name.substr(before_.size(), name.size() - before_.size() - after_.size());
    name.remove_prefix(std::min(name.find_first_not_of(' '), name.size()));
    int64_t number = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (error != std::errc{} || end != name.data() + name.size() || number < 0) continue;
    if (of(number) == folder_ + entry->d_name) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

}  // namespace saturate::data::detail
