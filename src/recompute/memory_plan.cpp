// SPDX-License-Identifier: Apache-2.0
#include "saturate/recompute/memory_plan.hpp"

#include "bytes_text.hpp"

#include <algorithm>
#include <cmath>
#include <ostream>

namespace saturate {
namespace {

std::string right(std::string text, std::size_t width) {
  return std::string(width - std::min(width, text.size()), ' ') + text;
}

std::string left(std::string text, std::size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

}  // namespace

void MemoryPlan::print(std::ostream& out) const {
  using detail::bytes_text;
  using detail::decimal;
  std::size_t width = 4;
  for (const MemoryPlanRow& row : rows) width = std::max(width, row.part.size());
  out << "memory plan" << (settled ? "" : " (not settled yet)") << ": budget " << bytes_text(budget) << ", predicted "
      << bytes_text(predicted_peak) << ", measured " << (measured_peak > 0 ? bytes_text(measured_peak) : "nothing yet")
      << "; " << std::lround(recomputed_share * 100) << " % of forward is recomputed\n";
  out << left("part", width) << right("forward ms", 12) << right("recomputed", 12) << right("kept", 12) << "  plan\n";
  for (const MemoryPlanRow& row : rows) {
    out << left(row.part, width) << right(decimal(row.forward_ms, 3), 12) << right(bytes_text(row.bytes_recomputed), 12)
        << right(bytes_text(row.bytes_kept), 12) << "  " << (row.recomputed ? "recompute" : "keep") << '\n';
  }
}

}  // namespace saturate
