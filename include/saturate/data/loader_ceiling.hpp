// SPDX-License-Identifier: Apache-2.0
// How fast a loader can deliver when nothing trains, and what stops it there:
//
//   const auto ceiling = st::data::loader_ceiling(loader);
//   std::cout << ceiling.words() << '\n' << st::data::compare_with_step(ceiling, 0.041) << '\n';
//
// prints the rate, the stage that limits it, and whether training is data-bound and how many workers would be enough.
#pragma once

#include "saturate/data/loader_options.hpp"

#include <chrono>
#include <cstdint>
#include <string>

namespace saturate::data {

/// What a loader spends most on when nothing else holds it up.
enum class LoaderLimit {
  read,    ///< fetching bytes from files (Stage::read)
  decode,  ///< decoding and transforming (Stage::decode)
  source,  ///< the source, outside of both stages: copying rows from memory, a transform of the batch
  copy,    ///< copies to the device
  loop     ///< handing batches over: the workers are idle most of the time
};

struct LoaderCeiling {
  double seconds = 0;   ///< measured, of the wall clock
  LoaderStats spent;    ///< batches, samples and seconds in that time (not totals)
  int64_t workers = 0;  ///< threads that read at the end of it; 0: the loop's own
  int64_t cores = 0;    ///< that this process may use

  double samples_per_second() const { return static_cast<double>(spent.samples) / seconds; }
  double seconds_per_batch() const { return seconds / static_cast<double>(spent.batches); }
  LoaderLimit limit() const;
  /// Workers that would keep up with a step of that length, if cores and disk were no limit.
  int64_t workers_for(double step_seconds) const;
  /// What stops it, in a sentence without a full stop.
  std::string cause() const;
  /// The ceiling and its cause, in a line.
  std::string words() const;
};

/// Whether training is data-bound with steps of `step_seconds` a batch, and what would help, in a line.
/// @throws ConfigError when step_seconds is not positive.
std::string compare_with_step(const LoaderCeiling& ceiling, double step_seconds);

namespace detail {
/// @throws DataError when no batch came.
LoaderCeiling ceiling_between(const LoaderStats& before, const LoaderStats& after, double seconds);
/// @throws ConfigError unless positive and finite.
void check_duration(double seconds);
}  // namespace detail

/// Iterates over the loader without a model: a fifth of `seconds` to warm up, then for `seconds`, epoch after epoch.
/// @throws ConfigError when seconds is not positive, DataError when an epoch has no batch; what reading throws.
template <class Loader>
LoaderCeiling loader_ceiling(Loader& loader, double seconds = 2.0) {
  detail::check_duration(seconds);
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  auto start = Clock::now();
  LoaderStats before = loader.stats();
  for (bool warm = false;;) {
    const int64_t had = loader.stats().batches;
    for ([[maybe_unused]] const auto& batch : loader) {
      if (!warm && since(start) >= 0.2 * seconds) {
        warm = true;
        before = loader.stats();
        start = Clock::now();
      } else if (warm && since(start) >= seconds) {
        return detail::ceiling_between(before, loader.stats(), since(start));
      }
    }
    if (loader.stats().batches == had) return detail::ceiling_between(before, before, since(start));
  }
}

}  // namespace saturate::data
