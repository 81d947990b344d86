// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/loader_ceiling.hpp"

#include "cores.hpp"
#include "saturate/error.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace saturate::data {
namespace {

struct Share {
  LoaderLimit limit;
  double seconds;
};

Share largest(const LoaderStats& spent) {
  const double rest = spent.worker_seconds - spent.read_seconds - spent.decode_seconds;
  Share most{LoaderLimit::source, rest};
  if (spent.read_seconds > most.seconds) most = {LoaderLimit::read, spent.read_seconds};
  if (spent.decode_seconds > most.seconds) most = {LoaderLimit::decode, spent.decode_seconds};
  return most;
}

std::string thousands(double value) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.0f", value);
  std::string text = digits;
  for (int at = static_cast<int>(text.size()) - 3; at > 0; at -= 3) text.insert(static_cast<std::size_t>(at), ",");
  return text;
}

std::string formatted(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string milliseconds(double seconds) { return formatted(seconds < 0.01 ? "%.2g ms" : "%.0f ms", 1e3 * seconds); }

std::string workers_in_words(int64_t workers) {
  if (workers == 0) return "on the loop's own thread";
  return "with " + std::to_string(workers) + (workers == 1 ? " worker" : " workers");
}

const char* remedy(LoaderLimit limit) {
  switch (limit) {
    case LoaderLimit::read: return "a faster disk, larger shards or a copy of the data in memory";
    case LoaderLimit::decode: return "smaller images, scaled decoding or data that is stored decoded";
    case LoaderLimit::copy: return "smaller batches on the wire: uint8 pixels, converted on the device";
    case LoaderLimit::source: return "a gather() for whole batches, or less work per sample";
    case LoaderLimit::loop: return "larger batches";
  }
  return "";
}

}  // namespace

LoaderLimit LoaderCeiling::limit() const {
  if (spent.copy_seconds > 0.9 * seconds) return LoaderLimit::copy;
  const double threads = static_cast<double>(std::max<int64_t>(workers, 1));
  if (spent.worker_seconds < 0.5 * seconds * threads) return LoaderLimit::loop;
  return largest(spent).limit;
}

int64_t LoaderCeiling::workers_for(double step_seconds) const {
  const double per_batch = spent.worker_seconds / static_cast<double>(spent.batches);
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(per_batch / step_seconds)));
}

std::string LoaderCeiling::words() const {
  std::string text = thousands(samples_per_second()) + " samples/s";
  if (spent.bytes > 0) text += ", " + formatted("%.3g MB/s", 1e-6 * static_cast<double>(spent.bytes) / seconds);
  return text + ", " + workers_in_words(workers) + ". " + cause();
}

std::string LoaderCeiling::cause() const {
  const auto of_workers = [&](double part) {
    return formatted("%.0f %% of the ", 100 * part / spent.worker_seconds) +
           (workers == 1   ? "worker's"
            : workers == 0 ? "loop's"
                           : "workers'") +
           " time";
  };
  switch (const Share most = largest(spent); limit()) {
    case LoaderLimit::read: return "Reading files is the limit: " + of_workers(most.seconds);
    case LoaderLimit::decode: return "Decoding is the limit: " + of_workers(most.seconds);
    case LoaderLimit::source:
      return "The source itself is the limit, outside of reading files and decoding: " + of_workers(most.seconds);
    case LoaderLimit::copy:
      return "Copying to the device is the limit: " +
             formatted("%.0f %% of the time", 100 * spent.copy_seconds / seconds);
    case LoaderLimit::loop:
      return "Handing batches over is the limit: the workers are idle " +
             formatted("%.0f %% of the time", 100 - 100 * spent.worker_seconds /
                                                        (seconds * static_cast<double>(std::max<int64_t>(workers, 1))));
  }
  return {};
}

std::string compare_with_step(const LoaderCeiling& ceiling, double step_seconds) {
  detail::check_duration(step_seconds);
  const std::string both =
      "the step takes " + milliseconds(step_seconds) + ", the loader " + milliseconds(ceiling.seconds_per_batch());
  if (ceiling.seconds_per_batch() <= step_seconds) return "the loader keeps up: " + both;
  const LoaderLimit limit = ceiling.limit();
  if (limit == LoaderLimit::copy || limit == LoaderLimit::loop)
    return "data-bound: " + both + "; more workers would not help: " + remedy(limit);
  const int64_t needed = ceiling.workers_for(step_seconds);
  const std::string workers = std::to_string(needed) + (needed == 1 ? " worker" : " workers");
  if (needed <= ceiling.cores && needed > ceiling.workers)
    return "data-bound: " + both + "; " + workers + " would be enough";
  if (needed <= ceiling.workers)
    return "data-bound: " + both + "; its " + workers_in_words(ceiling.workers).substr(5) +
           " should be enough, but get in each other's way: " + remedy(limit);
  return "data-bound: " + both + "; " + workers + " would be needed, and there are " + std::to_string(ceiling.cores) +
         " cores: " + remedy(limit);
}

namespace detail {

void check_duration(double seconds) {
  if (!(seconds > 0) || !std::isfinite(seconds))
    throw ConfigError("loader_ceiling: a time of " + std::to_string(seconds) + " s; it must be positive and finite");
}

LoaderCeiling ceiling_between(const LoaderStats& before, const LoaderStats& after, double seconds) {
  if (after.batches == before.batches) throw DataError("loader_ceiling: the loader gave no batch");
  LoaderCeiling ceiling;
  ceiling.seconds = seconds;
  ceiling.spent = after;
  ceiling.spent.batches -= before.batches;
  ceiling.spent.samples -= before.samples;
  ceiling.spent.skipped_samples -= before.skipped_samples;
  ceiling.spent.slot_allocations -= before.slot_allocations;
  ceiling.spent.wait_seconds -= before.wait_seconds;
  ceiling.spent.worker_seconds -= before.worker_seconds;
  ceiling.spent.read_seconds -= before.read_seconds;
  ceiling.spent.decode_seconds -= before.decode_seconds;
  ceiling.spent.copy_seconds -= before.copy_seconds;
  ceiling.spent.bytes -= before.bytes;
  ceiling.workers = after.workers;
  ceiling.cores = cores();
  return ceiling;
}

}  // namespace detail
}  // namespace saturate::data
