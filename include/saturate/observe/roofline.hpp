// SPDX-License-Identifier: Apache-2.0
// How near a step comes to what the machine can do (Williams, Waterman, Patterson: Roofline, CACM 52, 2009):
//
//   st::FlopCounter counter;  st::Stopwatch watch;
//   trainer.step(batch);
//   const auto roofline = st::make_roofline(counter.work(), st::Roofs::of(st::measure_peaks()), watch.seconds());
//   std::cout << roofline.table();       // each operator: intensity, attainable and reached rate, what it is bound by
//   roofline.mfu(), roofline.hfu()       // nothing where a peak is not known
//   roofline.to_svg()                    // a file of its own, or part of a page
#pragma once

#include "saturate/observe/op_work.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace saturate {

struct Peaks;
struct SpecPeak;

/// What bounds a rate from above.
struct Roofs {
  std::string source;                                      ///< "measured, Intel ...", "NVIDIA ... data sheet"
  double memory_bandwidth = 0;                             ///< bytes/s; 0: not known
  std::vector<std::pair<std::string, double>> peaks = {};  ///< FLOP/s by precision

  static Roofs of(const Peaks& measured);
  static Roofs of(const SpecPeak& spec);
  /// Nothing: not known.
  std::optional<double> peak(std::string_view precision) const;
};

enum class Bound { unknown, compute, memory };
std::string_view to_string(Bound bound);

/// Rates are FLOP/s. Of an operator, or of a whole step.
struct RooflinePoint {
  OpWork work;
  double intensity = 0;              ///< FLOP per byte; 0 for what computes no products
  std::optional<double> attainable;  ///< min(peak, intensity * bandwidth)
  std::optional<double> reached;     ///< FLOPs / seconds
  /// The least time it can take, max(FLOPs / peak, bytes / bandwidth), through the time it took: reached / attainable,
  /// and for what computes no products the share of the bandwidth. Above 1 where data came from a cache.
  std::optional<double> share;
  Bound bound = Bound::unknown;

  /// At the roofs: the larger of the two times. Nothing where a roof is not known.
  std::optional<double> least_seconds;
};

struct Roofline {
  Roofs roofs;
  double seconds = 0;                 ///< of the step
  std::vector<RooflinePoint> points;  ///< by time spent, the most first
  RooflinePoint step;                 ///< all of it; its peak is that of the step's mix of precisions

  /// Model FLOPs utilization: forward and backward at the peak of their precision, as a share of the step's time. A
  /// forward that was recomputed counts once (Chowdhery et al., PaLM, appendix B).
  std::optional<double> mfu() const;
  /// Hardware FLOPs utilization: what was computed a second time counts again.
  std::optional<double> hfu() const;

  /// A line for each of the first `most` operators, one for the step, MFU and HFU.
  std::string table(std::size_t most = 20) const;
  /// Log-log, light or dark as the reader's system asks; loads nothing. Operators without products are not in it.
  std::string to_svg() const;
};

/// @throws ConfigError seconds not above 0, negative FLOPs, bytes or seconds of an operator.
Roofline make_roofline(std::vector<OpWork> work, Roofs roofs, double seconds);

}  // namespace saturate
