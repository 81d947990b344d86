// SPDX-License-Identifier: Apache-2.0
// Sets of times: spans [begin, end), sorted and apart.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace saturate::trace {

using Span = std::pair<int64_t, int64_t>;
using Spans = std::vector<Span>;

/// As few spans as cover the same.
inline Spans merged(Spans spans) {
  std::sort(spans.begin(), spans.end());
  Spans result;
  for (const auto& [begin, end] : spans) {
    if (begin >= end) continue;
    if (!result.empty() && begin <= result.back().second) {
      result.back().second = std::max(result.back().second, end);
    } else {
      result.emplace_back(begin, end);
    }
  }
  return result;
}

inline int64_t length(const Spans& spans) {
  int64_t sum = 0;
  for (const auto& [begin, end] : spans) sum += end - begin;
  return sum;
}

/// The part of merged spans in [begin, end).
inline Spans within(const Spans& spans, int64_t begin, int64_t end) {
  Spans result;
  auto at = std::partition_point(spans.begin(), spans.end(), [&](const Span& span) { return span.second <= begin; });
  for (; at != spans.end() && at->first < end; ++at) {
    result.emplace_back(std::max(begin, at->first), std::min(end, at->second));
  }
  return result;
}

/// What lies in both, each merged.
inline Spans intersection(const Spans& a, const Spans& b) {
  Spans result;
  for (auto i = a.begin(), j = b.begin(); i != a.end() && j != b.end();) {
    const int64_t begin = std::max(i->first, j->first), end = std::min(i->second, j->second);
    if (begin < end) result.emplace_back(begin, end);
    i->second < j->second ? ++i : ++j;
  }
  return result;
}

/// The rest of [begin, end): merged spans of it left out.
inline Spans without(int64_t begin, int64_t end, const Spans& spans) {
  Spans gaps;
  for (const auto& [from, to] : spans) {
    if (begin < from) gaps.emplace_back(begin, from);
    begin = to;
  }
  if (begin < end) gaps.emplace_back(begin, end);
  return gaps;
}

}  // namespace saturate::trace
