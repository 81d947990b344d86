// SPDX-License-Identifier: Apache-2.0
#include "saturate/audit/memory_curve.hpp"

#include "saturate/error.hpp"
#include "text.hpp"

#include <algorithm>
#include <cmath>

namespace saturate::audit {
namespace {

constexpr double kWorthFreeing = 0.1;

int64_t highest_peak(const std::vector<AbRound>& rounds, ArmRound AbRound::*arm) {
  int64_t peak = 0;
  for (const AbRound& round : rounds) peak = std::max(peak, (round.*arm).timed.peak_bytes);
  return peak;
}

// None when they cannot be told: a file may hold rounds that took no time.
std::vector<double> ratios_of(const std::vector<AbRound>& rounds) {
  try {
    AbRounds raw;
    raw.rounds = rounds;
    return speed_ratios(raw);
  } catch (const Error&) {
    return {};
  }
}

// The plain step is a point too, at 1 and 1.
bool beaten(double memory, double speed, const MemoryPoint& by) {
  return by.memory() <= memory && by.speed() >= speed && (by.memory() < memory || by.speed() > speed);
}

}  // namespace

double MemoryPoint::samples_per_second() const {
  std::vector<double> speeds;
  for (const AbRound& round : rounds) speeds.push_back(round.candidate.timed.samples_per_second());
  return speeds.empty() ? 0 : median(speeds);
}

int64_t MemoryPoint::peak_bytes() const { return highest_peak(rounds, &AbRound::candidate); }
int64_t MemoryPoint::baseline_peak_bytes() const { return highest_peak(rounds, &AbRound::baseline); }

double MemoryPoint::speed() const {
  const std::vector<double> ratios = ratios_of(rounds);
  return ratios.empty() ? 0 : median(ratios);
}

Interval MemoryPoint::speed_range() const {
  const std::vector<double> ratios = ratios_of(rounds);
  if (ratios.empty()) return {};
  const auto [low, high] = std::minmax_element(ratios.begin(), ratios.end());
  return {*low, *high};
}

double MemoryPoint::memory() const {
  const int64_t plain = baseline_peak_bytes();
  return plain > 0 ? static_cast<double>(peak_bytes()) / static_cast<double>(plain) : 0;
}

bool MemoryPoint::counts() const { return error.empty() && memory() > 0 && speed() > 0 && std::isfinite(speed()); }

std::vector<const MemoryPoint*> memory_front(const std::vector<MemoryPoint>& curve) {
  std::vector<const MemoryPoint*> front;
  for (const MemoryPoint& point : curve) {
    if (!point.counts() || (point.memory() >= 1 && point.speed() <= 1)) continue;
    const bool dominated = std::any_of(curve.begin(), curve.end(), [&](const MemoryPoint& other) {
      return other.counts() && beaten(point.memory(), point.speed(), other);
    });
    if (!dominated) front.push_back(&point);
  }
  std::stable_sort(front.begin(), front.end(), [](auto* a, auto* b) { return a->memory() > b->memory(); });
  return front;
}

const MemoryPoint* best_trade(const std::vector<MemoryPoint>& curve) {
  const MemoryPoint* best = nullptr;
  const auto cost = [](const MemoryPoint& point) { return point.memory() / point.speed(); };
  for (const MemoryPoint* point : memory_front(curve)) {
    if (point->memory() > 1 - kWorthFreeing || cost(*point) >= 1) continue;
    if (best == nullptr || cost(*point) < cost(*best)) best = point;
  }
  return best;
}

std::string to_string(const MemoryPoint& point) {
  if (!point.error.empty()) return point.label + ": " + point.error;
  if (!point.counts()) return point.label + ": its rounds tell neither memory nor speed";
  return point.label + ": " + text::ratio(point.memory()) + "x memory at " + text::ratio(point.speed()) + "x speed (" +
         text::ratio(point.speed_range().low) + " to " + text::ratio(point.speed_range().high) + ")";
}

std::string memory_advice(const std::vector<MemoryPoint>& curve) {
  const MemoryPoint* best = best_trade(curve);
  if (best == nullptr) return {};
  const double lost = 1 - best->speed();
  return "If memory is what limits, " + best->label + " frees " + text::percent(1 - best->memory()) +
         " of what a step allocates " +
         (lost < 0.005 ? "at no loss of speed that shows" : "for " + text::percent(lost) + " of the speed") +
         (best->how_to_apply.empty() ? "." : ": " + best->how_to_apply + ".");
}

}  // namespace saturate::audit
