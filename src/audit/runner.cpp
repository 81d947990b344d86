// SPDX-License-Identifier: Apache-2.0
#include "saturate/audit/runner.hpp"

#include <algorithm>
#include <utility>

namespace saturate::audit {

void TacticSet::add(std::string id, std::string value, std::string axis) {
  std::erase_if(entries_, [&](const Entry& e) { return e.id == id || (!axis.empty() && e.axis == axis); });
  entries_.push_back({std::move(id), std::move(value), std::move(axis)});
}

const TacticSet::Entry* TacticSet::find(std::string_view id_or_axis) const {
  const auto at = std::find_if(entries_.begin(), entries_.end(),
                               [&](const Entry& e) { return e.id == id_or_axis || e.axis == id_or_axis; });
  return id_or_axis.empty() || at == entries_.end() ? nullptr : &*at;
}

bool TacticSet::has(std::string_view id_or_axis) const { return find(id_or_axis) != nullptr; }

std::optional<std::string> TacticSet::value(std::string_view id_or_axis) const {
  const Entry* entry = find(id_or_axis);
  return entry ? std::optional(entry->value) : std::nullopt;
}

std::vector<std::string> TacticSet::ids() const {
  std::vector<std::string> result;
  for (const Entry& entry : entries_) result.push_back(entry.id);
  return result;
}

std::string TacticSet::to_string() const {
  std::string result;
  for (const Entry& entry : entries_) result += (result.empty() ? "" : " + ") + entry.id;
  return result.empty() ? "baseline" : result;
}

}  // namespace saturate::audit
