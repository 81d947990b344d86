// SPDX-License-Identifier: Apache-2.0
// How a benchmark program talks to bench.py. The program prepares and warms up, then answers each line "round" on its
// standard input with one JSON line per side on its standard output, so that rounds of several programs, in several
// languages, can be interleaved.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <string>

namespace bench {

/// Seconds that `work()` takes.
template <class Work>
double seconds_of(Work&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// One raw sample: `side` handled `samples` in `seconds`. `more` holds further JSON members: `, "count": 3`.
inline void print_sample(const std::string& side, double seconds, int64_t samples, const std::string& more = {}) {
  std::printf("{\"side\": \"%s\", \"seconds\": %.9f, \"samples\": %lld%s}\n", side.c_str(), seconds,
              static_cast<long long>(samples), more.c_str());
  std::fflush(stdout);
}

/// What the numbers hold for: versions and settings, shown beside them. Plain text without quotes.
inline void print_info(const std::string& side, const std::string& text) {
  std::printf("{\"side\": \"%s\", \"info\": \"%s\"}\n", side.c_str(), text.c_str());
  std::fflush(stdout);
}

/// Calls `round(n)` for each line "round", with n = 0, 1, ..., until the input ends.
template <class Round>
void serve_rounds(Round&& round) {
  std::string line;
  for (int64_t n = 0; std::getline(std::cin, line) && line == "round"; ++n) round(n);
}

}  // namespace bench
