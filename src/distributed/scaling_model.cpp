// SPDX-License-Identifier: Apache-2.0
#include "saturate/distributed/scaling_model.hpp"

#include "saturate/error.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>

namespace saturate::distributed {
namespace {

template <class Value>
std::string number_text(Value value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

void require_ranks(int64_t ranks) {
  if (ranks < 1) throw ConfigError("scaling model: " + number_text(ranks) + " ranks; give at least 1");
}

double log2_rounded_up(int64_t ranks) {
  double rounds = 0;
  for (int64_t reached = 1; reached < ranks; reached *= 2) ++rounds;
  return rounds;
}

/// Of a ring, what leaves each rank.
double twice_all_but_own(int64_t ranks) { return 2.0 * static_cast<double>(ranks - 1) / static_cast<double>(ranks); }

AllReduceTime over_link(Link link, AllReduceCost (*cost)(int64_t)) {
  link.validate();
  return [link, cost](int64_t ranks, double bytes) { return cost(ranks).seconds(link, bytes); };
}

void require_nonnegative(const char* what, double value) {
  if (!(value >= 0) || !std::isfinite(value)) {
    throw ConfigError(std::string("Workload: ") + what + " is " + number_text(value) +
                      "; give a finite number, 0 or more");
  }
}

}  // namespace

void Link::validate() const {
  if (!(latency >= 0) || !std::isfinite(latency)) {
    throw ConfigError("Link: a latency of " + number_text(latency) + " s; give a finite number, 0 or more");
  }
  if (!(bandwidth > 0) || !std::isfinite(bandwidth)) {
    throw ConfigError("Link: a bandwidth of " + number_text(bandwidth) + " bytes/s; give a positive, finite number");
  }
}

AllReduceCost ring_cost(int64_t ranks) {
  require_ranks(ranks);
  return {2.0 * static_cast<double>(ranks - 1), twice_all_but_own(ranks)};
}

AllReduceCost halving_doubling_cost(int64_t ranks) {
  require_ranks(ranks);
  return {2 * log2_rounded_up(ranks), twice_all_but_own(ranks)};
}

AllReduceCost tree_cost(int64_t ranks) {
  require_ranks(ranks);
  const double rounds = 2 * log2_rounded_up(ranks);
  return {rounds, rounds};
}

AllReduceTime ring(Link link) { return over_link(link, ring_cost); }
AllReduceTime halving_doubling(Link link) { return over_link(link, halving_doubling_cost); }
AllReduceTime tree(Link link) { return over_link(link, tree_cost); }

AllReduceTime hierarchical(Link inside, Link network, int64_t ranks_per_node) {
  inside.validate();
  network.validate();
  if (ranks_per_node < 1) {
    throw ConfigError("hierarchical: " + number_text(ranks_per_node) + " ranks per node; give at least 1");
  }
  return [inside, network, ranks_per_node](int64_t ranks, double bytes) {
    require_ranks(ranks);
    if (ranks <= ranks_per_node) return ring_cost(ranks).seconds(inside, bytes);
    if (ranks % ranks_per_node != 0) {
      throw ConfigError("hierarchical: " + number_text(ranks) + " ranks do not fill nodes of " +
                        number_text(ranks_per_node));
    }
    // Reduce-scatter and all-gather inside are the two halves of a ring; the node's ranks then reduce their shares at
    // once, together all bytes over the node's link.
    return ring_cost(ranks_per_node).seconds(inside, bytes) + ring_cost(ranks / ranks_per_node).seconds(network, bytes);
  };
}

void Workload::validate() const {
  require_nonnegative("compute", compute);
  require_nonnegative("hideable", hideable);
  require_nonnegative("bytes", bytes);
  if (hideable > compute) {
    throw ConfigError("Workload: " + number_text(hideable) + " s are hideable, of " + number_text(compute) +
                      " s of compute; give a part of them");
  }
  if (buckets < 1) throw ConfigError("Workload: " + number_text(buckets) + " buckets; give at least 1");
}

std::vector<ScalingPoint> scaling(const Workload& work, const AllReduceTime& all_reduce,
                                  const std::vector<int64_t>& ranks) {
  work.validate();
  for (const int64_t n : ranks) require_ranks(n);
  std::vector<ScalingPoint> points;
  for (const int64_t n : ranks) {
    ScalingPoint point;
    point.ranks = n;
    const double buckets = static_cast<double>(work.buckets);
    const double bucket = all_reduce(n, work.bytes / buckets);
    point.communication = bucket * buckets;
    point.exposed = std::max(point.communication - work.hideable, bucket);
    point.step = work.compute + point.exposed;
    point.efficiency = point.step > 0 ? work.compute / point.step : 1;
    point.speedup = static_cast<double>(n) * point.efficiency;
    points.push_back(point);
  }
  return points;
}

std::string scaling_table(const std::vector<ScalingPoint>& points) {
  std::string text = "   ranks   communication ms   exposed ms    step ms   efficiency      speedup\n";
  for (const ScalingPoint& point : points) {
    char line[128];
    std::snprintf(line, sizeof line, "%8lld   %16.3f   %10.3f   %8.3f   %8.1f %%   %10.1f\n",
                  static_cast<long long>(point.ranks), 1e3 * point.communication, 1e3 * point.exposed, 1e3 * point.step,
                  100 * point.efficiency, point.speedup);
    text += line;
  }
  return text;
}

}  // namespace saturate::distributed
