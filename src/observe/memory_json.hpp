// SPDX-License-Identifier: Apache-2.0
// Memory timelines and reports as JSON, and back.
#pragma once

#include "saturate/observe/memory_timeline.hpp"

#include <concepts>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace saturate::detail {

using Json = nlohmann::ordered_json;

/// "optimizer_state"
const char* json_name(MemoryKind kind);

Json to_json(const MemoryTimeline& timeline);
/// @throws DataError
MemoryTimeline timeline_from_json(const Json& json);

/// @throws DataError "memory snapshot: <what>"
[[noreturn]] void bad_snapshot(const std::string& what);
Json parse_snapshot(std::string_view text);
/// A member of an object.
const Json& member(const Json& json, const char* name);

/// A value of exactly this type: no number is rounded or cut to fit.
template <class T>
T read(const Json& json, const char* name) {
  bool fits = false;
  if constexpr (std::same_as<T, bool>) {
    fits = json.is_boolean();
  } else if constexpr (std::integral<T>) {
    fits = json.is_number_integer();
  } else if constexpr (std::floating_point<T>) {
    fits = json.is_number();
  } else {
    fits = json.is_string();
  }
  if (!fits) bad_snapshot(std::string("'") + name + "' has another type");
  return json.get<T>();
}

template <class T>
T read_member(const Json& json, const char* name) {
  return read<T>(member(json, name), name);
}

/// The elements of an array, each through `read_one`.
template <class ReadOne>
auto read_all(const Json& json, const char* name, ReadOne&& read_one) {
  const Json& array = member(json, name);
  if (!array.is_array()) bad_snapshot(std::string("'") + name + "' is no array");
  std::vector<std::decay_t<decltype(read_one(array))>> all;
  all.reserve(array.size());
  for (const Json& one : array) all.push_back(read_one(one));
  return all;
}

}  // namespace saturate::detail
