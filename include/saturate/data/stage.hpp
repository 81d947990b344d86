// SPDX-License-Identifier: Apache-2.0
// Tells the loader what a source spends its time on: LoaderStats and loader_ceiling name the dearest stage.
//
//   { st::data::StageScope timed(st::data::Stage::decode); decode(bytes, out); }
//   st::data::count_bytes(bytes.size());
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

namespace saturate::data {

/// read: fetching bytes from a file; decode: turning them into values, transforms included. What a source spends
/// outside of both counts as neither.
enum class Stage { read, decode };
inline constexpr std::size_t stages = 2;

namespace detail {
/// Of this thread, since it began; the loader takes differences.
struct StageTotals {
  std::array<int64_t, stages> nanoseconds{};
  int64_t bytes = 0;
};
StageTotals& stage_totals();
}  // namespace detail

/// Adds its lifetime to a stage of this thread. Scopes do not nest.
class StageScope {
 public:
  explicit StageScope(Stage stage) : stage_(stage), start_(std::chrono::steady_clock::now()) {}
  ~StageScope() {
    detail::stage_totals().nanoseconds[static_cast<std::size_t>(stage_)] +=
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start_).count();
  }
  StageScope(const StageScope&) = delete;
  StageScope& operator=(const StageScope&) = delete;

 private:
  Stage stage_;
  std::chrono::steady_clock::time_point start_;
};

/// Bytes that came from a file, as they lie there (compressed images compressed).
inline void count_bytes(int64_t bytes) { detail::stage_totals().bytes += bytes; }

}  // namespace saturate::data
